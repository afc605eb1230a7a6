"""pdb on a persistent rank, with its prompt in the cell. The other ranks wait meanwhile, wherever they are."""

import io
import pdb

from .. import context


class Debugger(pdb.Pdb):
    """pdb whose lines come from `ask(text)`, which shows what it has printed; None where nobody can type."""

    def __init__(self, ask):
        super().__init__(stdin=self, stdout=io.StringIO(), nosigint=True)
        self.ask, self.prompt, self.use_rawinput = ask, "", False  # the notebook shows a prompt of its own

    def readline(self):
        text = self.stdout.getvalue()
        self.stdout.seek(0)
        self.stdout.truncate()
        line = self.ask(text)
        return "continue\n" if line is None else line + "\n"


def typed(rank, text):
    """In the notebook: show what pdb says on `rank`, and return the line that the reader types, or None."""
    context.printed(None, "stdout", text)
    try:
        return input(f"[rank {rank}] (Pdb) ")
    except Exception as error:  # IPython's own, where the front end cannot ask; EOFError in a script
        context.printed(None, "stderr", f"rank {rank} waits in pdb, but nobody can type here ({error}): it goes on\n")
        return None

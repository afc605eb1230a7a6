"""pdb on a kept rank, with its prompt in the cell. The other ranks wait meanwhile, wherever they are."""

import pdb
import sys

from .. import scope


class _Screen:
    """pdb's input and output: lines come from the notebook, text goes there with the next question."""

    def __init__(self, stay):
        self.stay, self.text = stay, ""

    def write(self, text):
        self.text += text

    def flush(self):
        pass

    def readline(self):
        self.stay.line.send(("ask", self.text))
        self.text = ""
        line = self.stay.inputs.get()
        return "continue\n" if line is None else line + "\n"

    def last_words(self):
        if self.text:
            self.stay.line.send(("say", self.text))
            self.text = ""


def _debugger():
    from . import stay

    screen = _Screen(stay.here)
    debugger = pdb.Pdb(stdin=screen, stdout=screen, nosigint=True)
    debugger.use_rawinput = False
    debugger.prompt = ""  # the notebook shows its own
    return debugger, screen


def breakpoint_here(*_, **__):
    """What `breakpoint()` does on a kept rank."""
    debugger, _ = _debugger()
    debugger.set_trace(sys._getframe(1))


def post_mortem(trace):
    """Open pdb where an exception came from."""
    debugger, screen = _debugger()
    debugger.reset()
    debugger.interaction(None, trace)
    screen.last_words()


# -- in the notebook -----------------------------------------------------------------------------------


def typed(rank, text):
    """Show what pdb says on `rank`, and return the line that the reader types; None where nobody can type."""
    scope.printed(None, "stdout", text)
    try:
        with scope.interrupts_let_through():
            return input(f"[rank {rank}] (Pdb) ")
    except Exception as error:  # IPython's own, where the front end cannot ask; EOFError in a script
        scope.printed(None, "stderr", f"rank {rank} waits in pdb, but nobody can type here ({error}): it goes on\n")
        return None

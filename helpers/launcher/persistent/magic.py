"""The cell magic `%%ranks`: the cell runs on every rank, or on those that are named.

%%ranks 0,2
loss = model(batch).sum()     # names stay from cell to cell
loss                          # the last expression is shown, rank by rank
"""

import argparse
import linecache
import shlex
from collections import deque
from html import escape

import IPython

from .. import context, display
from ..progress import plain
from . import ranks as open_ranks
from . import worker

SHORT = 30  # lines of output that stay as they came; more of them are folded, a block a rank
MOST = 2000  # lines of each rank that its block holds


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise ValueError(f"%%ranks: {message}. {self.format_usage().strip()}")


_parser = _Parser(prog="%%ranks", add_help=False)
_parser.add_argument("ranks", nargs="?", help="numbers, such as 0,2 or 1:3 (default: all)")
_parser.add_argument("--on", help="the same")
_parser.add_argument("--timeout", type=float, help="seconds that the cell may take")


def run(line, cell):
    """What `%%ranks` does with its line and its cell."""
    try:
        _run(line, cell)
    except (ValueError, RuntimeError) as error:
        # All that matters is in the message: the rank's own traceback, with the lines of this cell.
        error._render_traceback_ = f"{type(error).__name__}: {error}".splitlines
        raise


def _run(line, cell):
    options = _parser.parse_args(shlex.split(line))
    if not open_ranks.opened:
        raise RuntimeError("%%ranks: no ranks are open; open them with ranks = helpers.ranks(2)")
    ranks = open_ranks.opened[-1]
    numbers = chosen(options.ranks or options.on, ranks.nprocs)
    name = f"<%%ranks cell {IPython.get_ipython().execution_count}>"
    source = "\n" + cell  # so that the first line below %%ranks is line 2, as in the notebook
    # For tracebacks, here and on the ranks.
    linecache.cache[name] = (len(source), None, f"%%ranks {line}{source}".splitlines(keepends=True), name)
    compile(source, name, "exec", dont_inherit=True)  # refuses what is no Python before any rank sees it
    output = _Output(numbers)
    try:
        shown = ranks.call(numbers, worker.run_cell, (source, name), {}, options.timeout, "the cell", output.take)
        for rank, text in zip(numbers, shown, strict=True):
            if text is not None:
                output.take(rank, "stdout", text + "\n")
    finally:
        output.fold()


def chosen(text, nprocs):
    """The ranks that `text` names: "0", "0,2", "1:3"; all for None. Raises ValueError."""
    numbers = [] if text else list(range(nprocs))
    try:
        for part in text.split(",") if text else ():
            ends = [int(end) if end.strip() else None for end in part.split(":")]
            numbers += range(nprocs)[slice(*ends)] if len(ends) > 1 else [range(nprocs)[ends[0]]]
    except (IndexError, TypeError, ValueError):
        numbers = []  # no number, or not one of these
    if not numbers:
        raise ValueError(f"%%ranks: {text!r} names none of the ranks 0 to {nprocs - 1}; write 0 or 0,2 or 1:3")
    return list(dict.fromkeys(numbers))


class _Output:
    """What the ranks of one cell print and return."""

    def __init__(self, numbers):
        self.texts, self.lines = {rank: deque(maxlen=MOST) for rank in numbers}, 0

    def take(self, rank, stream, text):
        """Show whole lines of a rank, or of the launcher."""
        context.write(rank, stream, text)
        if rank in self.texts:
            self.texts[rank].extend(text.splitlines())
            self.lines += text.count("\n")

    def fold(self):
        """In a notebook put a block a rank, which is opened by a click, in the place of long output."""
        if self.lines <= SHORT or plain() or not display.in_notebook():
            return
        IPython.display.clear_output(wait=True)
        text = "".join(context.labelled(rank, "\n".join([*lines, ""])) for rank, lines in self.texts.items())
        html = "".join(
            f"<details><summary>rank {rank}</summary><pre>{escape(chr(10).join(lines))}</pre></details>"
            for rank, lines in self.texts.items()
        )
        IPython.display.display({"text/plain": text, "text/html": html}, raw=True)

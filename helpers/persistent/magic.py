"""The cell magic `%%ranks`: the cell runs on every rank, or on those that are named.

%%ranks 0,2
loss = model(batch).sum()     # names stay from cell to cell
loss                          # the last expression is shown, rank by rank
"""

import argparse
import linecache
import shlex

import IPython

from ..launcher import context
from . import ranks as open_ranks
from . import worker


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise ValueError(f"%%ranks: {message}. {self.format_usage().strip()}")


_parser = _Parser(prog="%%ranks", add_help=False)
_parser.add_argument("ranks", nargs="?", help="numbers, such as 0,2 or 1:3 (default: all)")
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
    numbers = chosen(options.ranks, ranks.nprocs)
    name = f"<%%ranks cell {IPython.get_ipython().execution_count}>"
    source = "\n" + cell  # so that the first line below %%ranks is line 2, as in the notebook
    # For tracebacks, here and on the ranks.
    linecache.cache[name] = (len(source), None, f"%%ranks {line}{source}".splitlines(keepends=True), name)
    compile(source, name, "exec", dont_inherit=True)  # refuses what is no Python before any rank sees it
    shown = ranks.call(numbers, worker.run_cell, (source, name), {}, options.timeout, "the cell")
    for rank, text in zip(numbers, shown, strict=True):
        if text is not None:
            context.write(rank, "stdout", text + "\n")


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

"""How far the reading of many records is, where somebody waits for it."""

import os
import sys
import time

from ..launcher import display

PATIENCE = 2.0  # s before anything is said
REDRAW, AGAIN = 0.2, 10.0  # s from one word to the next, on a line that is rewritten and on new ones
LABEL = "reading records"


class Line(display.Terminal):
    """One line of the terminal that errors go to: what the command says may go into a file."""

    def _stream(self):
        return sys.stderr


class Lines(display.Silent):
    """A line now and then, for a log."""

    def update(self, rows, row):
        print(f"{LABEL}: {row.numbers}", file=sys.stderr, flush=True)


class Reading:
    """Tells how many of `files` were read, once it takes a while; a context, after which the line is gone."""

    def __init__(self, files):
        self.files, self.row = files, display.Row(LABEL)
        self.draw, self.every = drawing()
        self.next = time.monotonic() + PATIENCE

    def __enter__(self):
        return self

    def now(self, count):
        """So many were read by now."""
        if time.monotonic() >= self.next:
            self.next = time.monotonic() + self.every
            self.row.share, self.row.numbers = count / self.files, f"{count:,} of {self.files:,} files"
            self.draw.update([self.row], self.row)

    def __exit__(self, *exception):
        self.draw.clear()


def drawing() -> tuple:
    """(what draws, seconds between two times): nothing where outputs are compared, as in an executed notebook."""
    watched = any(name in os.environ for name in display.FRONT_ENDS) if display.in_notebook() else True
    if os.environ.get("HELPERS_PROGRESS") == "plain" or not watched:
        return display.Silent(), AGAIN
    if display.in_notebook():
        return display.Notebook(), REDRAW
    return (Line(), REDRAW) if sys.stderr.isatty() else (Lines(), AGAIN)

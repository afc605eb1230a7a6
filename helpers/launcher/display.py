"""What progress looks like: one line of a terminal, text that does not change, or a line of text below a cell."""

from __future__ import annotations  # platforms.horovod is imported on Python 3.8, too

import shutil
import sys
import time
from dataclasses import dataclass

from .language import local, marked

WORDS = {
    "waiting": marked("waiting"),
    "running": marked("running"),
    "completed": marked("done"),
    "failed": marked("FAILED"),
    "stopped": marked("stopped"),
    "left out": marked("left out"),
}
FRONT_ENDS = ("JPY_SESSION_NAME", "VSCODE_PID", "COLAB_RELEASE_TAG")  # set where widgets can be shown


@dataclass(eq=False)
class Row:
    """What is known of one run."""

    label: str
    state: str = "waiting"  # one of WORDS
    share: float | None = None  # of its steps that are done, 0 to 1
    numbers: str = ""
    printed: str = ""  # the last line that a rank printed
    why: str = ""  # it did not end well
    began: float = 0.0  # time.monotonic()
    seconds: float = 0.0

    def begin(self, since=None):
        self.state, self.began = "running", since or time.monotonic()

    def end(self, status, why=""):
        self.state, self.why, self.seconds = status, why, time.monotonic() - self.began

    def summary(self) -> str:
        """What it does now, in a line."""
        return self.numbers or " · ".join(filter(None, [f"{time.monotonic() - self.began:.0f} s", self.printed]))


class Silent:
    """Shows nothing; the other displays override what they show."""

    def open(self, rows, stop):
        """Show all rows; setting `stop` (a threading.Event), if there is one, stops their runs."""

    def again(self, rows):
        """Show the rows once more, as they are."""
        for row in rows:
            print(f"{name(rows, row)}: {local(WORDS[row.state])}", flush=True)

    def forget(self):
        """The rows are not shown again."""

    def queued(self, rows, names):
        """Other runs come first."""

    def update(self, rows, row):
        """There is news of `row`."""

    def end(self, rows, row):
        """The run of `row` has ended."""

    def say(self, text):
        """A message between the runs."""

    def clear(self):
        """Other output follows."""

    def close(self, rows):
        """All runs have ended."""


class Plain(Silent):
    """One line when a run ends, without numbers."""

    def queued(self, rows, names):
        self.say(waiting_for(names))

    def end(self, rows, row):
        self.say(f"{name(rows, row)}: {local(WORDS[row.state])}")

    def say(self, text):
        print(text, flush=True)


class Terminal(Silent):
    """A bar that redraws itself on one line."""

    drawn = False

    def update(self, rows, row):
        share = "" if row.share is None else f"{bar(row.share, 12)} {row.share:4.0%}  "
        self._line(f"{name(rows, row):<21} {share}{row.summary()}")  # fits 80 columns
        self.drawn = True

    def queued(self, rows, names):
        self._line(waiting_for(names))
        self.drawn = True

    def end(self, rows, row):
        self.say(f"{name(rows, row)}: {local(WORDS[row.state])}")

    def say(self, text):
        self.clear()
        print(text, flush=True)

    def clear(self):
        if self.drawn:
            self._line("")
            self.drawn = False

    def _line(self, text):
        columns, stream = shutil.get_terminal_size().columns - 1, self._stream()
        stream.write(f"\r\x1b[2K{text[:columns]}")
        stream.flush()

    def _stream(self):
        return sys.stdout


class Notebook(Silent):
    """A line of text for each run below the cell, replaced in place; for front ends of which nothing is known."""

    def __init__(self):
        self.lines = {}

    def queued(self, rows, names):
        for row in rows:
            self._put(row, f"{name(rows, row)}: {waiting_for(names)}")

    def say(self, text):
        print(text, flush=True)

    def update(self, rows, row):
        share = "" if row.share is None else f"{bar(row.share, 24)} {row.share:4.0%}  "
        self._put(row, f"{name(rows, row)}  {share}{row.summary()}")

    def end(self, rows, row):
        self._put(row, f"{name(rows, row)}: {local(WORDS[row.state])}")

    def _put(self, row, text):
        from IPython.display import display

        if id(row) in self.lines:
            self.lines[id(row)].update({"text/plain": text}, raw=True)
        else:
            self.lines[id(row)] = display({"text/plain": text}, raw=True, display_id=True)


def waiting_for(names) -> str:
    """Why a queued run does not start."""
    return local("waiting for {names} to end", names=local(" and ").join(map(local, names)))


def bar(share, width) -> str:
    """`share` (0 to 1) of `width` characters filled."""
    filled = round(share * width)
    return "█" * filled + "·" * (width - filled)


def name(rows, row) -> str:
    """A run's label in the reader's language, with its number where there are several."""
    label = local(row.label)
    return f"[{rows.index(row) + 1}/{len(rows)}] {label}" if len(rows) > 1 else label


def in_notebook() -> bool:
    """Whether this process is a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")

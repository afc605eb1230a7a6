"""How the progress of runs is drawn: not at all, as text, or (in `panel`) by widgets of a notebook."""

import shutil
import sys
import time
from dataclasses import dataclass

from ..language import N_, _, shown

WORDS = {
    "waiting": N_("waiting"),
    "running": N_("running"),
    "completed": N_("done"),
    "failed": N_("FAILED"),
    "stopped": N_("stopped"),
    "left out": N_("left out"),
}
FRONT_ENDS = ("JPY_SESSION_NAME", "VSCODE_PID", "COLAB_RELEASE_TAG")  # set where widgets can be shown


@dataclass(eq=False)
class Row:
    """What is known of one run; texts are in the reader's language, the label is translated where it is shown."""

    label: str
    state: str = "waiting"  # one of WORDS
    share: float | None = None  # of its steps that are done, 0 to 1
    numbers: str = ""
    printed: str = ""  # the last line that a rank printed
    why: str = ""  # it did not end well
    began: float = 0.0  # time.monotonic()
    seconds: float = 0.0

    def summary(self) -> str:
        """What it does now, in a line."""
        return self.numbers or " · ".join(filter(None, [f"{time.monotonic() - self.began:.0f} s", self.printed]))


class NullDisplay:
    """Draws nothing. The other displays override its methods; `rows` are all rows, `row` the one with news."""

    moves = False  # whether it is redrawn while a run goes on

    def open(self, rows, stop):
        """Show all rows, and a button that sets `stop` (a threading.Event, or None for no button)."""

    def update(self, rows, row):
        """Draw a row again: its run goes on, or has just ended."""

    def say(self, text, passing=False):
        """Show a message between the runs; `passing`: until something runs."""

    def clear(self):
        """Make room for other output."""

    def close(self, rows):
        """Leave the last state: all runs have ended."""

    def again(self, rows):
        """Show the rows below the cell that runs now."""
        print("\n".join(state(rows, row) for row in rows), flush=True)

    def forget(self):
        """Free what is held: the rows are not shown again."""


class Text(NullDisplay):
    """A line when a run ends, without numbers that change from run to run; in a terminal a bar until then."""

    def __init__(self, moves=False):
        self.moves, self.drawn = moves, False

    def update(self, rows, row):
        if row.state != "running":
            self.say(state(rows, row))
        elif self.moves:
            filled = round((row.share or 0) * 12)
            share = "" if row.share is None else f"{'█' * filled}{'·' * (12 - filled)} {row.share:4.0%}  "
            self._redraw(f"{name(rows, row):<21} {share}{row.summary()}")  # fits 80 columns

    def say(self, text, passing=False):
        if passing and self.moves:
            self._redraw(text)
        else:
            self.clear()
            print(text, flush=True)

    def clear(self):
        if self.drawn:
            self._redraw("")
            self.drawn = False

    def _redraw(self, text):
        sys.stdout.write(f"\r\x1b[2K{text[: shutil.get_terminal_size().columns - 1]}")
        sys.stdout.flush()
        self.drawn = True


def waiting_for(names) -> str:
    """Why a queued run does not start."""
    return _("waiting for {names} to end").format(names=_(" and ").join(map(shown, names)))


def name(rows, row) -> str:
    """A run's label in the reader's language, with its number where there are several."""
    label = shown(row.label)
    return f"[{rows.index(row) + 1}/{len(rows)}] {label}" if len(rows) > 1 else label


def state(rows, row) -> str:
    """A run's name and state."""
    return f"{name(rows, row)}: {_(WORDS[row.state])}"


def in_notebook() -> bool:
    """Whether this process is a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")

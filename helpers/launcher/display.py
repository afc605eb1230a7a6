"""How the progress of runs is drawn: not at all, as text, or (in `panel`) by widgets of a notebook."""

import time
from dataclasses import dataclass, field

from ..language import N_, _, shown

WORDS = {name: name for name in (N_("waiting"), N_("queued"), N_("running"), N_("stopped"), N_("left out"))}
WORDS |= {"completed": N_("done"), "failed": N_("FAILED")}


@dataclass(eq=False)
class Row:
    """What is known of one run; texts are in the reader's language, the label is translated where it is shown."""

    label: str
    state: str = "waiting"  # a key of WORDS
    share: float | None = None  # of its steps that are done, 0 to 1
    where: str = ""  # it runs, or is queued, if not on this machine
    numbers: str = ""
    printed: str = ""  # the last line that a rank printed
    redrawn: dict = field(default_factory=dict)  # the line that each rank redraws, its progress bar
    why: str = ""  # it did not end well
    began: float = 0.0  # time.monotonic()
    seconds: float = 0.0

    def summary(self) -> str:
        """What it does now, in a line."""
        numbers = self.numbers or " · ".join(filter(None, [f"{time.monotonic() - self.began:.0f} s", self.printed]))
        return f"{self.where} · {numbers}" if self.where else numbers


def name(rows, row) -> str:
    """A run's label in the reader's language, with its number where there are several."""
    label = shown(row.label)
    return f"[{rows.index(row) + 1}/{len(rows)}] {label}" if len(rows) > 1 else label


def state(rows, row) -> str:
    """A run's name and state."""
    return f"{name(rows, row)}: {_(WORDS[row.state])}"


def waiting_for(names) -> str:
    """Why a queued run does not start."""
    return _("waiting for {names} to end").format(names=_(" and ").join(map(shown, names)))


class NullDisplay:
    """Draws nothing. The other displays override its methods; `row` is the one with news."""

    moves = False  # whether it is redrawn while a run goes on
    html = ""  # what it shows now, if that is HTML

    def open(self, rows, stop):
        """Show all rows, and a button that sets `stop` (a threading.Event, or None for no button)."""

    def update(self, rows, row):
        """Draw a row again: its run goes on, or has just ended."""

    def say(self, text, passing=False):
        """Show a message between the runs; `passing`: until something runs."""

    def close(self, rows):
        """Leave the last state: all runs have ended."""


class Text(NullDisplay):
    """A line when a run ends, without numbers that change from run to run."""

    def update(self, rows, row):
        if row.state not in ("queued", "running"):
            self.say(state(rows, row))

    def say(self, text, passing=False):
        print(text, flush=True)

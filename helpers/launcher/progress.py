"""Progress of runs: a panel in a notebook, plain text elsewhere.

The plain text does not change from run to run, so that executed notebooks can be compared. It is chosen by
HELPERS_PROGRESS=plain and wherever the output is no notebook that shows widgets.
"""

import importlib.util
import math
import os
import threading
import time
from contextlib import contextmanager

from ..language import _, shown
from . import context, errors, run_queue
from .display import NullDisplay, Row, Text, waiting_for

REDRAW = 0.2  # s
PATIENCE = 2.0  # s that a single launch may take before its progress is shown
FRONT_ENDS = ("JPY_SESSION_NAME", "VSCODE_PID", "COLAB_RELEASE_TAG")  # set where widgets can be shown


def has_widgets() -> bool:
    """Whether the front end of this process shows widgets, as far as is known, and may."""
    plain = os.environ.get("HELPERS_PROGRESS") == "plain"
    if plain or not context.in_notebook() or not any(front_end in os.environ for front_end in FRONT_ENDS):
        return False
    return importlib.util.find_spec("ipywidgets") is not None


def best_display(quiet=False):
    """The display that fits where this process shows its output; `quiet`: a panel, or nothing."""
    if has_widgets():
        from .panel import Panel

        return Panel()
    return NullDisplay() if quiet else Text()


class Progress:
    """What is known of some runs, one after the other, and the display that shows it.

    `event` fits launch's `on_event`. `stop`, set from elsewhere (the panel's button for example), interrupts the
    launches in a block `with progress.turn(…)`; what their ranks print goes through `printed` to `sink`.
    """

    def __init__(self, labels=(), to=None):
        self.rows = [Row(label) for label in labels]
        self.display = to or best_display()
        self.stop = threading.Event()
        self.sink = context.write
        self.patience = 0.0  # s of a run after which it is shown
        self.opened, self.drawn = False, 0.0
        self.row = None  # of the current run
        self.advised = set()

    @contextmanager
    def turn(self, title, ticket=None):
        """Wait until earlier runs have ended; launches in the block are shown here. Nothing in such a block of its own.

        `title` says what runs to those who wait; `ticket` is its place in the run queue, if it has one.
        """
        if self in context.stack():
            yield
            return
        rest = "left out"
        try:
            with context.entered(self), run_queue.turn(title, self.queued, ticket):
                yield
        except KeyboardInterrupt:
            rest = "stopped" if self.row is None else rest
            raise
        finally:
            for row in self.rows:
                row.state = rest if row.state == "waiting" else row.state
            self.display.close(self.rows)

    def open(self):
        """Show the panel before anything runs, so that it stands below the cell that asked for it."""
        if not self.opened:
            self.opened = True
            self.display.open(self.rows, self.stop)

    def queued(self, names):
        """Say for which runs this one waits."""
        self.open()
        self.display.say(waiting_for(names), passing=True)

    def begin(self, label):
        """A run starts."""
        waiting = [row for row in self.rows if row.label == label and row.state == "waiting"]
        if not waiting:
            self.rows.append(Row(label))
        self.row = (waiting or self.rows[-1:])[0]
        self.row.state, self.row.began = "running", time.monotonic()
        self.tick(now=True)

    def event(self, event):
        """An event of a rank: a training step, or a note on what takes long."""
        if event.get("event") == "note":
            self.row.numbers = shown(event["text"])
            self.tick(now=True)
        if event.get("event") == "step":
            self.row.share = event["step"] / event["steps"]
            loss, speed = f"{event['loss']:.3f}", f"{event['images_per_s']:.0f} {event['samples']}/s"
            of = {"step": event["step"], "steps": event["steps"], "loss": loss, "speed": speed}
            self.row.numbers = _("step {step}/{steps} · loss {loss} · {speed}").format(**of)
            self.tick(now=event["step"] == event["steps"])

    def moved(self, state, where):
        """The run is "queued" or "running" on other machines."""
        if (self.row.state, self.row.where) != (state, where := shown(where)):
            self.row.state, self.row.where = state, where
            if not self.display.moves:
                self.display.say(where)
            self.tick(now=True)

    def printed(self, rank, stream, text):
        """A rank printed whole lines."""
        if self.row is not None and text.strip():
            self.row.printed = text.strip().rpartition("\n")[2]
            self.row.redrawn.pop(rank, None)
            if rank is None:  # the launcher's own words are shown until the next step is over
                self.row.numbers = ""
        self.sink(rank, stream, text)

    def redrawn(self, rank, text):
        """A rank has drawn its last line again, without an end; returns whether that is shown."""
        if self.row is not None:
            self.row.redrawn[rank] = text
        return self.display.moves

    def end(self, status, why=""):
        """The run has ended with `status`, for the reason `why` if it did not go well."""
        self.row.state, self.row.why, self.row.seconds = status, why, time.monotonic() - self.row.began
        self.row.redrawn = {}
        if self.opened:
            self.display.update(self.rows, self.row)

    @contextmanager
    def showing(self, label):
        """Show a run from its beginning to its end, however it ends."""
        self.begin(label)
        status, why = "failed", ""
        try:
            yield
            status = "completed"
        except KeyboardInterrupt:
            status = "stopped"
            raise
        except Exception as error:
            why = errors.in_short(error)
            raise
        finally:
            self.end(status, why)

    def note(self, text):
        """A message between runs."""
        self.display.say(shown(text))

    def advise(self, text):
        """A message before a run starts; shown once, however many runs it holds for."""
        if text and text not in self.advised:
            self.advised.add(text)
            self.note(text)

    def tick(self, now=False):
        """Draw what is due; called about ten times a second while ranks run."""
        clock = time.monotonic()
        patient = self.row is None or (not self.opened and clock - self.row.began < self.patience)
        if not patient and (now or clock - self.drawn >= REDRAW):
            self.drawn = clock
            self.open()
            self.display.update(self.rows, self.row)


@contextmanager
def launching(label, progress=None):
    """Run the block, a launch, when it is its turn, and show it in `progress`.

    Without a `progress` it is shown once it has taken a while, where the display moves; within a run, which is shown
    and has its turn, this does nothing.
    """
    if progress is None and context.progress():
        yield
        return
    if progress is None:
        progress = Progress([label])
        progress.patience = PATIENCE if progress.display.moves else math.inf
    with progress.turn(label), progress.showing(label):
        yield


@contextmanager
def waiting(label):
    """Show a row in the notebook for a block without progress events, such as another program."""
    progress = Progress([label], best_display(quiet=True))
    progress.stop = None  # no button of its own: nobody would look whether it was pressed
    with progress.showing(label):
        yield
    progress.display.close(progress.rows)

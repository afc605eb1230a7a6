"""Progress of runs: a panel in a notebook, a bar in a terminal, plain text elsewhere.

The plain text does not change from run to run, so that executed notebooks can be compared. It is chosen by
HELPERS_PROGRESS=plain and wherever the output is neither a terminal nor a notebook that shows widgets.
"""

import importlib.util
import math
import os
import sys
import threading
import time
from collections import deque
from contextlib import contextmanager

from ..language import _, shown
from . import context, display, errors, run_queue

REDRAW = 0.2  # s
PATIENCE = 2.0  # s that a single launch may take before its progress is shown
KEPT = 20  # of the last runs and comparisons can be shown again

recent = deque()


def panel():
    """Show below this cell how the last runs of this kernel stand, oldest first; runs that go on are updated.

    For when the page was reloaded, or the cell that started a run in the background is far away. A cell that was on
    the page when it was reloaded keeps its panel only while the kernel lives; this one's stays.
    """
    for progress in list(recent):
        progress.display.again(progress.rows)
    if not recent:
        print(_("No runs yet in this kernel."))


def plain() -> bool:
    """Whether output is to be text that does not change from run to run."""
    return os.environ.get("HELPERS_PROGRESS") == "plain"


def has_widgets() -> bool:
    """Whether the front end of this process shows widgets, as far as is known, and may."""
    if plain() or not display.in_notebook() or not any(front_end in os.environ for front_end in display.FRONT_ENDS):
        return False
    return importlib.util.find_spec("ipywidgets") is not None


def best_display(quiet=False):
    """The display that fits where this process shows its output; `quiet`: a panel, or nothing."""
    if has_widgets():
        from .panel import Panel

        return Panel()
    if quiet:
        return display.NullDisplay()
    return display.Text(moves=not plain() and not display.in_notebook() and sys.stdout.isatty())


class Progress:
    """What is known of some runs, one after the other, and the display that shows it.

    `event` fits launch's `on_event`. `stop`, set from elsewhere (the panel's button for example), interrupts the
    launches in a block `with progress.turn(…)`; what their ranks print goes through `printed` to `sink`.
    """

    def __init__(self, labels=(), to=None):
        self.rows = [display.Row(label) for label in labels]
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

        Args:
            title: what runs, for those who wait.
            ticket: its place in the run queue, if it has one.
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
        if self.opened:
            return
        self.opened = True
        recent.append(self)
        over = [one for one in recent if all(row.state not in ("waiting", "running") for row in one.rows)]
        if len(recent) > KEPT and over:
            recent.remove(over[0])
            over[0].display.forget()
        self.display.open(self.rows, self.stop)

    def queued(self, names):
        """Runs with these `names` come first."""
        self.open()
        self.display.say(display.waiting_for(names), passing=True)

    def begin(self, label):
        """A run starts."""
        waiting = [row for row in self.rows if row.label == label and row.state == "waiting"]
        if not waiting:
            self.rows.append(display.Row(label))
        self.row = (waiting or self.rows[-1:])[0]
        self.row.state, self.row.began = "running", time.monotonic()
        self._redraw(now=True)

    def event(self, event):
        """An event of a rank: a training step, or a note on what takes long."""
        if event.get("event") == "note":
            self.row.numbers = shown(event["text"])
            self._redraw(now=True)
        if event.get("event") == "step":
            self.row.share = event["step"] / event["steps"]
            loss, speed = f"{event['loss']:.3f}", f"{event['images_per_s']:.0f} {event['samples']}/s"
            of = {"step": event["step"], "steps": event["steps"], "loss": loss, "speed": speed}
            self.row.numbers = _("step {step}/{steps} · loss {loss} · {speed}").format(**of)
            self._redraw(now=event["step"] == event["steps"])

    def tick(self):
        """Time has passed; called about ten times a second while ranks run."""
        self._redraw()

    def printed(self, rank, stream, text):
        """A rank printed whole lines."""
        self.display.clear()
        if self.row is not None and text.strip():
            self.row.printed = text.strip().rpartition("\n")[2]
            if rank is None:  # the launcher's own words are shown until the next step is over
                self.row.numbers = ""
        self.sink(rank, stream, text)

    def end(self, status, why=""):
        """The run has ended with `status`, for the reason `why` if it did not go well."""
        self.row.state, self.row.why, self.row.seconds = status, why, time.monotonic() - self.row.began
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

    def _redraw(self, now=False):
        time_now = time.monotonic()
        patient = self.row is None or (not self.opened and time_now - self.row.began < self.patience)
        if not patient and (now or time_now - self.drawn >= REDRAW):
            self.drawn = time_now
            self.open()
            self.display.update(self.rows, self.row)


class Log(Progress):
    """A line every so many steps, as a training script prints it; for runs from a command line.

    Batch time and samples/s are means over the steps since the line before; the first line's include the warm-up.
    """

    def __init__(self, every=10):
        super().__init__(to=display.Text())
        self.opened, self.every = True, every

    def begin(self, label):
        """A run starts."""
        self.row, self.logged, self.spent = display.Row(label, "running", began=time.monotonic()), 0, 0.0
        self.display.say(_("{label}: starting").format(label=shown(label)))

    def event(self, event):
        """An event of a rank."""
        if event.get("event") == "note":
            self.note(event["text"])
        if event.get("event") != "step" or event["step"] < min(self.logged + self.every, event["steps"]):
            return
        steps = event["step"] - max(self.logged, event["first_step"])
        batch_s = (event["trained_s"] - self.spent) / steps
        rate = event["images_per_s"] * event["step_s"] / batch_s
        self.logged, self.spent = event["step"], event["trained_s"]
        line = _(
            "epoch {epoch}  step {step}/{steps}  batch time {batch_s} s  {rate} samples/s  "
            "peak memory {peak} MiB  loss {loss}"
        )
        values = {name: event[name] for name in ("epoch", "step", "steps")}
        values |= {"batch_s": f"{batch_s:.3f}", "rate": f"{rate:,.0f}" if rate >= 10 else f"{rate:.2f}"}
        values |= {"peak": f"{event['peak_memory'] / 2**20:,.0f}", "loss": f"{event['loss']:.4f}"}
        self.display.say(line.format(**values))


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
    try:
        with progress.showing(label):
            yield
    finally:
        progress.display.close(progress.rows)

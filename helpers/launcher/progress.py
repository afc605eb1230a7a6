"""Progress of runs: a panel in a notebook, a bar in a terminal, plain text elsewhere.

The plain text does not change from run to run, so that executed notebooks can be compared. It is chosen by
HELPERS_PROGRESS=plain and wherever the output is neither a terminal nor a notebook.
"""

import importlib.util
import os
import sys
import threading
import time
from collections import deque
from contextlib import contextmanager

from . import display, errors, scope
from .language import local

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
        print(local("No runs yet in this kernel."))


def best_display(without=()):
    """The display that fits where this process shows its output; a silent one if that is among the types `without`."""
    found = _best()
    return display.Silent() if isinstance(found, without) else found


def plain() -> bool:
    """Whether output is to be text that does not change from run to run."""
    return os.environ.get("HELPERS_PROGRESS") == "plain"


def _best():
    if plain():
        return display.Plain()
    if not display.in_notebook():
        return display.Terminal() if sys.stdout.isatty() else display.Plain()
    if has_widgets():
        from .panel import Panel

        return Panel()
    return display.Notebook()


def has_widgets() -> bool:
    """Whether the front end of this process shows widgets, as far as is known, and may."""
    if plain() or not display.in_notebook() or not any(front_end in os.environ for front_end in display.FRONT_ENDS):
        return False
    return importlib.util.find_spec("ipywidgets") is not None


class Progress:
    """Shows one run after the other. `event` fits launch's `on_event`.

    Used as a context manager it is also what launches of this thread look at: `stop`, set from elsewhere (the panel's
    button for example), interrupts them; what their ranks print goes through `printed`.
    """

    def __init__(self, labels=(), to=None):
        self.rows = [display.Row(label) for label in labels]
        self.display = to or best_display()
        self.stop = threading.Event()
        self.sink = scope.write
        self.drawn, self.depth = 0.0, 0
        self.row = None  # of the current run
        self.advised = set()

    def __enter__(self):
        self.depth += 1
        if self.depth == 1:
            self._scope = scope.entered(self)
            self._scope.__enter__()
        return self

    def __exit__(self, *exception):
        self.depth -= 1
        if self.depth == 0:
            self._scope.__exit__(*exception)
            stopped = exception and isinstance(exception[1], KeyboardInterrupt)
            for row in self.rows:
                if row.state == "waiting":
                    row.state = "stopped" if stopped and self.row is None else "left out"
            self.display.close(self.rows)

    def open(self):
        """Show the panel before anything runs, so that it stands below the cell that asked for it."""
        if self not in recent:
            recent.append(self)
            over = [one for one in recent if all(row.state not in ("waiting", "running") for row in one.rows)]
            if len(recent) > KEPT and over:
                recent.remove(over[0])
                over[0].display.forget()
            self.display.open(self.rows, self.stop)

    def queued(self, names):
        """Runs with these `names` come first."""
        self.open()
        self.display.queued(self.rows, names)

    def begin(self, label, since=None):
        """A run starts, or has started at `since` (time.monotonic())."""
        waiting = [row for row in self.rows if row.label == label and row.state == "waiting"]
        if not waiting:
            self.rows.append(display.Row(label))
        self.row = (waiting or self.rows[-1:])[0]
        self.row.begin(since)
        self.open()
        self._redraw(now=True)

    def event(self, event):
        """An event of a rank: a training step, or a note on what takes long."""
        if event.get("event") == "note":
            self.row.numbers = local(event["text"])
            self._redraw(now=True)
        if event.get("event") == "step":
            self.row.share = event["step"] / event["steps"]
            loss, speed = f"{event['loss']:.3f}", f"{event['images_per_s']:.0f} {event['samples']}/s"
            of = {"step": event["step"], "steps": event["steps"], "loss": loss, "speed": speed}
            self.row.numbers = local("step {step}/{steps} · loss {loss} · {speed}", **of)
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
        self.row.end(status, why)
        self.display.end(self.rows, self.row)

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
        self.display.say(local(text))

    def advise(self, text):
        """A message before a run starts; shown once, however many runs it holds for."""
        subject = text.partition(":")[0]  # the numbers after it are measured in each process
        if text and subject not in self.advised:
            self.advised.add(subject)
            self.display.say(local(text))

    def _redraw(self, now=False):
        if self.row is not None and (now or time.monotonic() - self.drawn >= REDRAW):
            self.drawn = time.monotonic()
            self.display.update(self.rows, self.row)


class Log(Progress):
    """A line every so many steps, as a training script prints it; for runs from a command line.

    Batch time and samples/s are means over the steps since the line before; the first line's include the warm-up.
    """

    def __init__(self, every=10):
        super().__init__(to=display.Plain())
        self.every, self.logged, self.spent = every, 0, 0.0

    def begin(self, label):
        """A run starts."""
        self.row, self.logged, self.spent = display.Row(label), 0, 0.0
        print(local("{label}: starting", label=label), flush=True)

    def event(self, event):
        """An event of a rank."""
        if event.get("event") == "note":
            print(local(event["text"]), flush=True)
        if event.get("event") != "step" or event["step"] < min(self.logged + self.every, event["steps"]):
            return
        steps = event["step"] - max(self.logged, event["first_step"])
        batch_s = (event["trained_s"] - self.spent) / steps
        rate = event["images_per_s"] * event["step_s"] / batch_s
        rate = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2f}"
        self.logged, self.spent = event["step"], event["trained_s"]
        values = {name: event[name] for name in ("epoch", "step", "steps")}
        values |= {"batch_s": f"{batch_s:.3f}", "rate": rate, "loss": f"{event['loss']:.4f}"}
        print(
            local(
                "epoch {epoch}  step {step}/{steps}  batch time {batch_s} s  {rate} samples/s  "
                "peak memory {peak} MiB  loss {loss}",
                peak=f"{event['peak_memory'] / 2**20:,.0f}",
                **values,
            ),
            flush=True,
        )


class Watch(Progress):
    """Shows one launch once it has taken a while; nothing where the output is plain or of an unknown front end."""

    def __init__(self, label):
        super().__init__([label], best_display(without=(display.Plain, display.Notebook)))

    def begin(self, label):
        """The launch starts."""
        self.began = time.monotonic()
        if self in recent:  # it had to wait for its turn, and has said so
            super().begin(label)

    def tick(self):
        """Time has passed."""
        if self.row is None and time.monotonic() - self.began > PATIENCE:
            super().begin(self.rows[0].label, self.began)
        super().tick()

    def queued(self, names):
        """Runs with these `names` come first; a silent wait would look like a hang anywhere."""
        if type(self.display) is display.Silent:
            print(display.waiting_for(names), flush=True)
        super().queued(names)

    def end(self, status, why=""):
        """The launch has ended; nothing is shown of a short one."""
        if self.row is not None:
            super().end(status, why)


@contextmanager
def waiting(label):
    """Show that a block goes on which reports nothing, such as another program; the stop button interrupts it."""
    watch, over = Watch(label), threading.Event()
    watch.stop = None  # no button of its own: nobody would look whether it was pressed

    def tick():
        while not over.wait(REDRAW):
            watch.tick()

    with watch, watch.showing(label):
        ticker = threading.Thread(target=tick, daemon=True)
        ticker.start()
        try:
            yield
        finally:
            over.set()
            ticker.join()

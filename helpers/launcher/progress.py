"""Progress of runs: a panel in a notebook, a bar in a terminal, plain text elsewhere.

The plain text does not change from run to run, so that executed notebooks can be compared. It
is chosen by HELPERS_PROGRESS=plain and wherever the output is neither a terminal nor a notebook.
"""

import threading
import time
from collections import deque
from contextlib import contextmanager

from . import display, errors, scope

REDRAW = 0.2  # s
KEPT = 20  # of the last runs and comparisons can be shown again


recent = deque()


def panel():
    """Show below this cell how the last runs of this kernel stand, oldest first; what still runs goes on moving.

    For when the page was reloaded, or the cell that started a run in the background is far away. A cell that
    was on the page when it was reloaded keeps its panel only as long as the kernel lives; this one's stays.
    """
    for progress in list(recent):
        progress.draw.again(progress.rows)
    if not recent:
        print("No runs yet in this kernel.")


class Progress:
    """Shows one run after the other. `event` fits launch's `on_event`.

    Used as a context manager it is also what launches of this thread look at: `stop` set from elsewhere, by
    the panel's button say, interrupts them; what their ranks print goes through `printed`.
    """

    def __init__(self, labels=(), draw=None):
        self.rows = [display.Row(label) for label in labels]
        self.draw = draw or display.drawing()
        self.stop = threading.Event()
        self.sink = scope.write
        self.drawn, self.depth = 0.0, 0
        self.row = None  # that of the run which goes on
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
            self.draw.close(self.rows)

    def open(self):
        """Show the panel before anything runs, so that it stands below the cell that asked for it."""
        if self not in recent:
            recent.append(self)
            if len(recent) > KEPT:
                recent.popleft().draw.forget()
            self.draw.open(self.rows, self.stop)

    def queued(self, names):
        """Runs with these `names` come first."""
        self.open()
        self.draw.queued(self.rows, names)

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
            self.row.numbers = event["text"]
            self._redraw(now=True)
        if event.get("event") == "step":
            self.row.share = event["step"] / event["steps"]
            step, speed = f"step {event['step']}/{event['steps']}", f"{event['images_per_s']:.0f} images/s"
            self.row.numbers = f"{step} · loss {event['loss']:.3f} · {speed}"
            self._redraw(now=event["step"] == event["steps"])

    def tick(self):
        """Time has passed; called about ten times a second while ranks run."""
        self._redraw()

    def printed(self, rank, stream, text):
        """A rank printed whole lines."""
        self.draw.clear()
        if self.row is not None and text.strip():
            self.row.said = text.strip().rpartition("\n")[2]
        self.sink(rank, stream, text)

    def end(self, status, why=""):
        """The run has ended as `status` says, for the reason `why` if it did not go well."""
        self.row.end(status, why)
        self.draw.end(self.rows, self.row)

    @contextmanager
    def telling(self, label):
        """Show a run from its beginning to its end, whatever that is."""
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
        """Something that has to be said between runs."""
        self.draw.say(text)

    def advise(self, text):
        """Something to know before a run starts; said once, however many runs it holds for."""
        subject = text.partition(":")[0]  # the numbers after it are measured anew in each process
        if text and subject not in self.advised:
            self.advised.add(subject)
            self.draw.say(text)

    def _redraw(self, now=False):
        if self.row is not None and (now or time.monotonic() - self.drawn >= REDRAW):
            self.drawn = time.monotonic()
            self.draw.update(self.rows, self.row)


class Log(Progress):
    """A line every so many steps, with what a training script prints; for runs from a command line."""

    def __init__(self, every=10):
        super().__init__(draw=display.Plain())
        self.every, self.logged = every, 0

    def begin(self, label):
        """A run starts."""
        self.row, self.logged = display.Row(label), 0
        print(f"{label}: starting", flush=True)

    def event(self, event):
        """An event of a rank."""
        if event.get("event") == "note":
            print(event["text"], flush=True)
        if event.get("event") != "step" or event["step"] < min(self.logged + self.every, event["steps"]):
            return
        self.logged = event["step"]
        print(
            f"epoch {event['epoch']}  step {event['step']}/{event['steps']}  batch time {event['step_s']:.3f} s  "
            f"{event['images_per_s']:,.0f} samples/s  peak memory {event['peak_memory'] / 2**20:,.0f} MiB  "
            f"loss {event['loss']:.4f}",
            flush=True,
        )

    def advise(self, text):
        """Something to know before the run starts."""
        if text:
            print(text, flush=True)

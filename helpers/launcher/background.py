"""A run that goes on while the notebook is used for other things."""

import threading
from collections import deque

from . import context, run_queue
from .errors import RunStopped
from .progress import Progress, best_display

MOST_LINES = 100_000  # that are kept of what the ranks print
ENDED = 30  # s after which every stopped rank has ended


class BackgroundRun:
    """The handle of a run in the background.

    Attributes:
        label: what it runs.
        status: "queued", "running", "completed", "failed" or "stopped".
    """

    def __init__(self, label, work, progress):
        self.label, self.status = label, "queued"
        self._work, self._progress = work, progress
        self._lines = deque(maxlen=MOST_LINES)  # (rank, text)
        self._value = self._error = None
        self._done = threading.Event()
        progress.sink = lambda rank, stream, text: self._lines.append((rank, text))
        progress.open()
        self._ticket = run_queue.enqueue(label)  # here, since threads may start in any order
        threading.Thread(target=self._run, name=f"run of {label}", daemon=True).start()

    def stop(self):
        """Stop it and return when nothing of it is left; one that waits for its turn will not start."""
        self._progress.stop.set()
        self._done.wait(ENDED)

    def result(self, timeout=None):
        """Wait for the run and return what it would have returned in the foreground.

        Args:
            timeout: seconds to wait; the run goes on after them.

        Raises:
            RunStopped: it was stopped. TimeoutError: it is not done yet.
            RankError, RankTimeout, LauncherError: as in the foreground.
        """
        if not self._done.wait(timeout):
            raise TimeoutError(f"{self.label} is still {self.status}; it goes on")
        if self.status == "stopped":
            raise RunStopped(f"{self.label} was stopped before its end")
        if self._error is not None:
            raise self._error
        return self._value

    def logs(self, rank=None) -> str:
        """What the ranks have printed so far in the order in which it came, or what one `rank` has."""
        lines = list(self._lines)
        if rank is None:
            return "".join(context.labelled(one, text) for one, text in lines)
        return "".join(text for one, text in lines if one == rank)

    def __repr__(self):
        return f"<{self.label}: {self.status}>"

    def _run(self):
        try:
            with self._progress.turn(self.label, self._ticket):
                self.status = "running"
                self._value = self._work(self._progress)
            self.status = "completed"
        except KeyboardInterrupt:
            self.status = "stopped"
        except BaseException as error:
            self._error, self.status = error, "failed"
        finally:
            self._work = None  # frees the reader's data
            self._done.set()


def start(label, work, labels=None) -> BackgroundRun:
    """Call `work(progress)` in a thread when it is its turn.

    Args:
        label: what is run, for those who wait for it.
        work: shows what it does in `progress`, a Progress.
        labels: of its runs, if there are several.
    """
    with context.interrupts_held_back():  # a ticket that nobody uses would keep all later runs waiting
        return BackgroundRun(label, work, Progress(labels or [label], best_display(quiet=True)))

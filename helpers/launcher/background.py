"""A run that goes on while the notebook is used for other things."""

import threading
from collections import deque
from concurrent.futures import Future, wait

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
        progress: what is known of it so far, and what shows it.
    """

    def __init__(self, label, work, progress):
        self.label, self.status = label, "queued"
        self.progress, self._lines, self._done = progress, deque(maxlen=MOST_LINES), Future()
        progress.sink = lambda rank, stream, text: self._lines.append((rank, text))
        progress.open()
        ticket = run_queue.enqueue(label)  # here, since threads may start in any order
        threading.Thread(target=self._run, args=(work, ticket), name=f"run of {label}", daemon=True).start()

    def stop(self):
        """Stop it and return when nothing of it is left; one that waits for its turn will not start."""
        self.progress.stop.set()
        wait([self._done], ENDED)

    def result(self, timeout=None):
        """Wait, at most `timeout` seconds, for the run and return or raise what it would have in the foreground.

        Raises:
            RunStopped: it was stopped. TimeoutError: it is not done yet, and goes on.
        """
        if not wait([self._done], timeout).done:
            raise TimeoutError(f"{self.label} is still {self.status}; it goes on")
        return self._done.result()

    def logs(self, rank=None) -> str:
        """What the ranks have printed so far in the order in which it came, or what one `rank` has."""
        if rank is None:
            return "".join(context.labelled(one, text) for one, text in list(self._lines))
        return "".join(text for one, text in list(self._lines) if one == rank)

    def __repr__(self):
        return f"<{self.label}: {self.status}>"

    def _run(self, work, ticket):
        try:
            with self.progress.turn(self.label, ticket):
                self.status = "running"
                value = work(self.progress)
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt)
            self.status = "stopped" if stopped else "failed"
            self._done.set_exception(RunStopped(f"{self.label} was stopped before its end") if stopped else error)
        else:
            self.status = "completed"
            self._done.set_result(value)


def start(label, work, labels=None) -> BackgroundRun:
    """Call `work(progress)`, which is to show what it does, in a thread when it is its turn; `labels` are its runs'."""
    with context.interrupts_held_back():  # a ticket that nobody uses would keep all later runs waiting
        return BackgroundRun(label, work, Progress(labels or [label], best_display(quiet=True)))

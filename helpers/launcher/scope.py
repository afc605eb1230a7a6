"""What surrounds a launch in its thread: who may stop it, where its output goes, who shows its progress."""

import sys
import threading
from contextlib import contextmanager

from . import interrupts

_here = threading.local()


class Stopped(KeyboardInterrupt):
    """Somebody pressed the panel's Stop button, or stopped a run in the background."""

    def _render_traceback_(self):
        """What IPython shows: where the notebook happened to wait would be of no use to anybody."""
        return [f"Stopped: {self}. What was recorded so far is kept."]


@contextmanager
def entered(progress):
    """Launches of this thread tell `progress` (see live.Progress) how they go on, and stop when it is told to."""
    _here.stack = (*_stack(), progress)
    try:
        yield
    finally:
        _here.stack = _stack()[:-1]


def progress():
    """What shows the progress in this thread, or None."""
    return next(reversed(_stack()), None)


def raise_if_stopped():
    """Raise Stopped, or KeyboardInterrupt, if somebody asked to stop what this thread does."""
    interrupts.raise_if_pressed()
    if any(progress.stop and progress.stop.is_set() for progress in _stack()):
        raise Stopped("no rank was running")


def printed(rank, stream, text):
    """Show what a rank printed: whole lines of "stdout" or "stderr"."""
    here = progress()
    (here.printed if here else write)(rank, stream, text)


def write(rank, stream, text):
    """Print the lines with the number of the rank before each; `rank` None for words of the launcher."""
    file = getattr(sys, stream)
    file.write(labelled(rank, text))
    file.flush()


def labelled(rank, text):
    """The lines of `text` with the number of their rank."""
    return text if rank is None else "".join(f"[rank {rank}] {line}\n" for line in text.split("\n")[:-1])


def _stack():
    return getattr(_here, "stack", ())

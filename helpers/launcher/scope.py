"""What surrounds a launch in its thread: who may stop it, where its output goes, what shows its progress.

The kernel's stop button is noticed between two steps of the launcher, never within one: a KeyboardInterrupt between
the making of a pipe and the line that remembers it would lose the pipe, and half of a run handed over would keep the
fork server waiting for the other half.
"""

from __future__ import annotations  # platforms.horovod is imported on Python 3.8, too

import signal
import sys
import threading
from contextlib import contextmanager

_here = threading.local()
_pressed = None  # while interrupts are held back: the signals that came and were not noticed yet


class Stopped(KeyboardInterrupt):
    """Somebody pressed the panel's Stop button, or stopped a run in the background."""

    def _render_traceback_(self):
        """What IPython shows: where the notebook happened to wait is of no use to the reader."""
        return [f"Stopped: {self}. What was recorded so far is kept."]


@contextmanager
def entered(progress):
    """Launches of this thread show how they go on in `progress` (a Progress), and stop when its `stop` is set."""
    _here.stack = (*_stack(), progress)
    try:
        yield
    finally:
        _here.stack = _stack()[:-1]


def progress():
    """What shows the progress in this thread, or None."""
    return next(reversed(_stack()), None)


@contextmanager
def interrupts_held_back():
    """Keep SIGINT until `raise_if_stopped` or the end of the block; a second one, before that, comes through."""
    global _pressed
    usual = signal.getsignal(signal.SIGINT)
    if _pressed is not None or not _in_main_thread() or not callable(usual):
        yield
        return
    pressed = []

    def press(*arguments):
        pressed.append(arguments)
        if len(pressed) > 1:  # something blocks, the reader's on_event for example
            pressed.clear()
            usual(*arguments)

    signal.signal(signal.SIGINT, press)
    try:
        _pressed = pressed
        yield
    finally:
        _pressed = None
        signal.signal(signal.SIGINT, usual)
        if pressed:
            usual(*pressed[0])


@contextmanager
def interrupts_let_through():
    """Let the stop button interrupt this block, inside one of `interrupts_held_back`, while a reader is asked."""
    if _pressed is None or not _in_main_thread():
        yield
        return
    held_back = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, held_back)


def raise_if_stopped():
    """Raise KeyboardInterrupt, or Stopped, if somebody asked to stop what this thread does."""
    if _pressed and _in_main_thread():
        _pressed.clear()
        raise KeyboardInterrupt
    if any(progress.stop and progress.stop.is_set() for progress in _stack()):
        raise Stopped("no rank was running")


def printed(rank, stream, text):
    """Show what a rank printed: whole lines of "stdout" or "stderr"."""
    here = progress()
    (here.printed if here else write)(rank, stream, text)


def write(rank, stream, text):
    """Print the lines, each after the number of its rank; `rank` None for messages of the launcher."""
    file = getattr(sys, stream)
    file.write(labelled(rank, text))
    file.flush()


def labelled(rank, text):
    """The lines of `text`, each after the number of its rank."""
    return text if rank is None else "".join(f"[rank {rank}] {line}\n" for line in text.split("\n")[:-1])


def _stack():
    return getattr(_here, "stack", ())


def _in_main_thread():
    return threading.current_thread() is threading.main_thread()

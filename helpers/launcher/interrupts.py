"""The kernel's stop button during a launch: noticed between two steps of the launcher, never within one.

A KeyboardInterrupt between the making of a pipe and the line that remembers it would lose the pipe; half of
a run handed over would keep the fork server waiting for the other half.
"""

from __future__ import annotations  # helpers.hvd is imported on Python 3.8, too

import signal
import threading
from contextlib import contextmanager

_pressed = None  # while interrupts are held back: the signals that came and were not noticed yet


@contextmanager
def held_back():
    """Keep SIGINT until `raise_if_pressed` or the end of the block; a second one, before that, comes through."""
    global _pressed
    usual = signal.getsignal(signal.SIGINT)
    if _pressed is not None or not _in_main_thread() or not callable(usual):
        yield
        return
    pressed = []

    def press(*arguments):
        pressed.append(arguments)
        if len(pressed) > 1:  # something does not come to its next step, the reader's on_event say
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


def raise_if_pressed():
    """Raise KeyboardInterrupt for a signal that was held back."""
    if _pressed and _in_main_thread():
        _pressed.clear()
        raise KeyboardInterrupt


def _in_main_thread():
    return threading.current_thread() is threading.main_thread()

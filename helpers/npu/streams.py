"""Streams and events of the emulated card. They do nothing, because an operator has finished when it returns."""

import contextlib
import time
import warnings

import torch

from .cards import card_of


def _say_so():
    warnings.warn(
        "streams and events do nothing here: an operator has finished when it returns, and times between events "
        "are the CPU's (emulated NPU)",
        stacklevel=3,
    )


class Stream(torch.Stream):
    """A queue of work that is always empty."""

    def __new__(cls, device=None, priority=0, **_):
        _say_so()
        return super().__new__(cls, device=torch.device("npu", card_of(device)))

    def wait_event(self, event):
        """Return at once."""

    def record_event(self, event=None):
        """Note the time in an event, a new one if need be."""
        event = event or Event(enable_timing=True)
        event.record(self)
        return event


class Event:
    """A mark in a stream. With `enable_timing` it remembers the host's clock."""

    def __init__(self, enable_timing=False, blocking=False, interprocess=False):
        _say_so()
        self._timed, self._at = enable_timing, None

    def record(self, stream=None):
        """Note the time."""
        self._at = time.perf_counter()

    def elapsed_time(self, end) -> float:
        """Milliseconds of the host's clock from this event to `end`."""
        if not (self._timed and end._timed and self._at and end._at):
            raise RuntimeError("both events must be made with enable_timing=True and recorded (emulated NPU)")
        return (end._at - self._at) * 1000

    def synchronize(self):
        """Return at once."""

    def wait(self, stream=None):
        """Return at once."""

    def query(self):
        """True: all work is done."""
        return True


def current_stream(device=None):
    """The stream that work goes to: the only one."""
    return torch.Stream.__new__(Stream, device=torch.device("npu", card_of(device)))


default_stream = current_stream


def set_stream(stream) -> None:
    """Nothing: there is one stream."""


class StreamContext(contextlib.AbstractContextManager):
    """`with torch.npu.stream(s):` changes nothing."""

    def __init__(self, stream):
        self.stream = stream

    def __exit__(self, *_):
        return None


def stream(stream):
    """A context in which work goes to `stream`, which does nothing."""
    return StreamContext(stream)


def is_current_stream_capturing() -> bool:
    """False: there are no graphs."""
    return False

"""One run at a time: two that share the cores would both be slow, and their times would mean nothing."""

from __future__ import annotations  # platforms.horovod is imported on Python 3.8, too

import os
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass

from . import scope

_line = []  # tickets in the order in which they were drawn; the first that is not over has its turn
LOOK = 0.02  # s


@dataclass(eq=False)
class Ticket:
    """A place in the line of this process."""

    name: str
    thread: int | None = None  # that uses it
    over: bool = False


def draw(name) -> Ticket:
    """A place at the end of the line; it has to be used, or be made `over`."""
    _line.append(ticket := Ticket(name))
    return ticket


@contextmanager
def turn(name, queued=None, ticket=None):
    """Wait until all runs of this process that asked before have ended; a run within a run has its turn already.

    Threads that the reader made do not wait: launches that need each other, such as the agents of two hosts, could
    not be started otherwise.

    Args:
        name: what runs, for those who wait.
        queued: called with the names of all before this one, if there are any, and whenever they change.
        ticket: the place in the line, if it was drawn before.

    Raises:
        KeyboardInterrupt: it was stopped while it waited.
    """
    here = threading.get_ident()
    readers_own = ticket is None and threading.current_thread() is not threading.main_thread()
    if readers_own or any(other.thread == here and not other.over for other in list(_line)):
        yield
        return
    ticket = ticket or Ticket(name)
    try:
        ticket.thread = here
        if ticket not in _line:
            _line.append(ticket)
        shown = []
        while names := _before(ticket):
            scope.raise_if_stopped()
            if queued is not None and names != shown:
                queued(shown := names)
            time.sleep(LOOK)
        yield
    finally:
        ticket.over = True  # nothing can come between this and the interrupt that ended the run
        if ticket in _line:
            _line.remove(ticket)


def _before(ticket):
    line = list(_line)  # other threads come and go
    return [other.name for other in line[: line.index(ticket)] if not other.over]


# A forked child has none of its parent's threads, so nobody would ever leave the line.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_line.clear)

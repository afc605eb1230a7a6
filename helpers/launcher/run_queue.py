"""One run at a time: two that share the cores would both be slow, and their times would mean nothing."""

import os
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass

from . import context

_queue = []  # of Ticket; the first that is not over has its turn
INTERVAL = 0.02  # s between two looks


@dataclass(eq=False)
class Ticket:
    """A place in the queue of this process."""

    name: str
    thread: int | None = None  # that runs it
    over: bool = False


def enqueue(name) -> Ticket:
    """A place at the end of the queue; `turn` has to use it."""
    _queue.append(ticket := Ticket(name))
    return ticket


@contextmanager
def turn(name, waiting, ticket=None):
    """Wait until all runs of this process that asked before have ended; a run within a run has its turn already.

    Threads that the reader made do not wait: launches that need each other, such as the agents of two hosts, could
    not be started otherwise. `waiting` is called with the names of those before this one whenever they change.

    Raises:
        KeyboardInterrupt: it was stopped while it waited.
    """
    here = threading.get_ident()
    readers_own = ticket is None and threading.current_thread() is not threading.main_thread()
    if readers_own or any(other.thread == here and not other.over for other in list(_queue)):
        yield
        return
    ticket = ticket or Ticket(name)
    try:
        ticket.thread = here
        if ticket not in _queue:
            _queue.append(ticket)
        known = []
        while names := _before(ticket):
            context.raise_if_stopped()
            if names != known:
                waiting(known := names)
            time.sleep(INTERVAL)
        yield
    finally:
        ticket.over = True  # first, since an interrupt may come before the next line
        if ticket in _queue:
            _queue.remove(ticket)


def _before(ticket):
    queue = list(_queue)  # other threads come and go
    return [other.name for other in queue[: queue.index(ticket)] if not other.over]


# A forked child has none of its parent's threads, so nobody would ever leave the queue.
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_queue.clear)

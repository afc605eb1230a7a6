"""Where a process stands, for tests that must not begin before it stands there."""

import sys
import threading
import time
from pathlib import Path


def announce(function, path):
    """Make the file `path` as soon as the main thread of this process is inside a `function` of this name."""
    main = threading.main_thread().ident

    def look():
        while function not in calls(sys._current_frames()[main]):
            time.sleep(0.005)
        Path(path).touch()

    threading.Thread(target=look, daemon=True).start()


def calls(frame):
    """The names of the functions on a stack."""
    names = set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return names


def with_patience(attempt, seen, patiences=(3, 20, 100)):
    """What `attempt(seconds)` gives once `seen(it)` holds; where it does not, the attempt is made with more patience.

    For what happens so many seconds after a start: how far a process has come by then depends on the machine.
    """
    for seconds in patiences:
        found = attempt(seconds)
        if seen(found):
            break
    return found

"""One measurement at a time on a machine, in whichever process: two at once would measure each other."""

import json
import os
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from ..language import Message
from ..launcher import context

INTERVAL = 0.1  # s between two looks
_mine = []  # what this process measures: a run within a run has its turn already


@contextmanager
def alone(title, progress):
    """Wait until no other process of this user measures here; `progress` shows for what, and its Stop ends the wait.

    The system frees the lock when the process that holds it ends, however that ends. HELPERS_ALONE=0 leaves it out, for
    runs that do not disturb each other.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        fcntl = None
    if _mine or fcntl is None or os.environ.get("HELPERS_ALONE") == "0":
        yield
        return
    _mine.append(title)
    try:
        with open(_path(), "a+", encoding="utf-8") as file:
            told = None
            while not _locked(fcntl, file):
                context.raise_if_stopped()
                if (other := _holder(file)) != told:
                    progress.queued([told := other])
                time.sleep(INTERVAL)
            file.truncate(0)
            file.write(json.dumps([os.getpid(), str(title)]))
            file.flush()
            yield
    finally:
        _mine.remove(title)


def _path():
    return Path(tempfile.gettempdir(), f"helpers-measuring-{os.getuid()}.lock")


def _locked(fcntl, file):
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _holder(file):
    """Whom the lock belongs to, in words."""
    file.seek(0)
    try:
        pid, title = json.load(file)
    except ValueError:  # it is being written
        pid, title = "?", "?"
    return Message("{title} in another process ({pid})", title=title, pid=str(pid))

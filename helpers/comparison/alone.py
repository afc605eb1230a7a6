"""One measurement at a time on a machine, in whichever process: two at once would measure each other."""

import os
import tempfile
import time
from pathlib import Path

from ..language import Message
from ..launcher import context

INTERVAL = 0.1  # s between two looks
_mine = []  # what this process measures: a run within a run has its turn already


def alone(title, work, progress):
    """Call `work(progress)` when no other process of this user measures; `progress` shows the wait, its Stop ends it.

    The system frees the lock when its process ends. HELPERS_ALONE=0 leaves it out, as for runs on devices of their own.
    """
    if _mine or os.name == "nt" or os.environ.get("HELPERS_ALONE") == "0":
        return work(progress)
    import fcntl  # not on Windows

    _mine.append(title)
    try:
        with open(Path(tempfile.gettempdir(), f"helpers-measuring-{os.getuid()}.lock"), "a+", encoding="utf-8") as file:
            holder = None
            while True:
                context.raise_if_stopped()
                try:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    file.seek(0)
                    said = file.read() or holder  # nothing until the one who has just taken it has written its name
                    if said != holder:
                        progress.queued([Message("{title} in another process", title=said)])
                    holder = said
                    time.sleep(INTERVAL)
            file.truncate(0)
            print(f"{title} ({os.getpid()})", end="", file=file, flush=True)
            return work(progress)
    finally:
        _mine.clear()

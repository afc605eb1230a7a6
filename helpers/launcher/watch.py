"""Progress of what takes longer than one expects: one launch, or another program that reports nothing."""

import threading
import time
from contextlib import contextmanager

from . import display, progress

PATIENCE = 2.0  # s before progress is shown


class Watch(progress.Progress):
    """Shows one launch, from when it has taken a while; says nothing where nobody looks."""

    def __init__(self, label):
        super().__init__([label], display.drawing(without=(display.Plain, display.Notebook)))

    def begin(self, label):
        """The launch starts."""
        self.began = time.monotonic()
        if self in progress.recent:  # it had to wait for its turn, and has said so
            super().begin(label)

    def tick(self):
        """Time has passed."""
        if self.row is None and time.monotonic() - self.began > PATIENCE:
            super().begin(self.rows[0].label, self.began)
        super().tick()

    def queued(self, names):
        """Runs with these `names` come first; a silent wait would look like a hang anywhere."""
        if type(self.draw) is display.Silent:
            print(display.waits(names), flush=True)
        super().queued(names)

    def end(self, status, why=""):
        """The launch has ended; nothing is shown of a short one."""
        if self.row is not None:
            super().end(status, why)


@contextmanager
def waiting(label):
    """Show that a block goes on which reports nothing, another program say; the kernel's own stop button stops it."""
    watch, over = Watch(label), threading.Event()
    watch.stop = None  # no button: nobody would look whether it was pressed

    def tick():
        while not over.wait(progress.REDRAW):
            watch.tick()

    with watch, watch.telling(label):
        ticker = threading.Thread(target=tick, daemon=True)
        ticker.start()
        try:
            yield
        finally:
            over.set()
            ticker.join()

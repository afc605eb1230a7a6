"""Shows kept ranks in the panel, and looks after them while nobody calls them."""

import re
import threading

from .. import display
from ..language import local, marked
from ..progress import Progress, best_display

EVERY = 1.0  # s between two looks
MEMORY = 5  # looks between two readings of the memory, which take the system milliseconds


class Watch:
    """A row of the panel for one `Ranks`, and the thread that keeps it up to date, from their start to their end."""

    def __init__(self, ranks):
        self.ranks, self.memory, self.over = ranks, "", threading.Event()
        label = marked(f"{ranks.nprocs} kept ranks") if ranks.nprocs > 1 else marked("1 kept rank")
        silent = (display.Plain, display.Terminal, display.Notebook)
        self.progress = Progress([label], best_display(without=silent))
        self.progress.begin(label)
        self.thread = threading.Thread(target=self._look, name="helpers: watch of kept ranks", daemon=True)
        self.thread.start()

    def end(self, status, why):
        """They have ended."""
        self.over.set()
        self.progress.row.numbers = ""
        self.progress.end(status, why)
        self.progress.display.close(self.progress.rows)

    def _look(self):
        looks = 0
        while not self.over.wait(EVERY):
            self.ranks.look_after()
            if type(self.progress.display) is display.Silent:
                continue
            if looks % MEMORY == 0:
                self.memory = memory(self.ranks.pids)
            looks += 1
            self.progress.row.numbers = " · ".join(map(local, filter(None, [self.ranks.status, self.memory])))
            self.progress.tick()


def memory(pids) -> str:
    """What processes take each, without what they share with others; "" where the system does not say."""
    sizes = []
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                own = re.findall(r"^Private_\w+: +(\d+) kB", file.read(), re.MULTILINE)
        except OSError:  # macOS; or it has just ended
            return ""
        sizes.append(sum(map(int, own)) / 1024)
    if not sizes:
        return ""
    least, most = f"{min(sizes):.0f}", f"{max(sizes):.0f}"
    return marked(f"{least} MB a rank") if least == most else marked(f"{least} to {most} MB a rank")

"""Draw a page in processes, in a process that has no torch and no threads; run by test_report_drawing.py."""

import multiprocessing
import os
import signal
import sys
from pathlib import Path

from helpers import cli, device
from helpers.report import drawing, everything, figures

FOLDER, OUT = map(Path, sys.argv[1:])
PARENT, HTML = os.getpid(), drawing.html
drew = []  # how many figures this process has drawn itself


def noted(maker):
    drew.append(maker)
    return HTML(maker)


def dying(maker):
    if os.getpid() != PARENT:
        os.kill(os.getpid(), signal.SIGKILL)
    return noted(maker)


def page(workers, html=noted):
    """The page, drawn by so many processes."""
    drew.clear()
    device.usable_cores = lambda: workers
    drawing.html = html
    (path,) = everything.everything(FOLDER).write(OUT, "html").values()
    assert not multiprocessing.active_children(), "left over"
    return path.read_bytes()


device.usable_cores = lambda: 3
drawing.html = noted
assert cli.main(["report", str(FOLDER), "--out", str(OUT), "--formats", "html"]) == 0
heavy = [name for name in ("pandas", "matplotlib", "numpy", "IPython", "torch") if name in sys.modules]
assert not heavy and not drew, f"loaded {heavy}, drew {len(drew)}"
drawn = page(workers=3)
assert not drew and drawn.count(b"data:image/png") >= 3
assert page(workers=3, html=dying) == drawn and drew, "all died"
assert page(workers=1) == drawn and drew, "without processes"


def broken(ladder):
    raise ZeroDivisionError("this figure")


figures.efficiency_and_memory = broken
try:
    page(workers=3)
    raise SystemExit("no error")
except ZeroDivisionError:
    pass
assert not multiprocessing.active_children(), "left over after an error"
print("done")

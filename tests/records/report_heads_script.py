"""Read a folder of records in a process that has no torch and no threads; run by test_report_heads.py."""

import json
import multiprocessing
import os
import shutil
import signal
import sys
from pathlib import Path

FOLDER, CACHE = map(Path, sys.argv[1:])
os.environ["HELPERS_CACHE"] = str(CACHE)

from helpers import device
from helpers.records import forks, progress  # noqa: E402
from helpers.records import heads as report_heads
from helpers.records import index as report_index
from helpers.records import read as report_records

report_heads.CHUNK, report_heads.TOGETHER = 10, 20
PARENT, NOW = os.getpid(), progress.Reading.now
FAST, MAY_FORK = report_heads.items, forks.may_fork
seen = []  # files that this process has read itself since `index` or `interrupted` began


def reads():
    return len(seen)


def counted(read):
    return lambda path: (seen.append(path), read(path))[1]


def living():
    report_heads.items = counted(FAST)


def dying(name):
    """The process that is to read this file dies of it; this one does not."""

    def read(path):
        if os.getpid() != PARENT and path.endswith(name):
            os.kill(os.getpid(), signal.SIGKILL)
        return FAST(path)

    report_heads.items = counted(read)


def index(workers=1, plain=False, fresh=True):
    """What the index holds after the folder was read."""
    if fresh:
        shutil.rmtree(CACHE, ignore_errors=True)
    seen.clear()
    was, report_heads.items = report_heads.items, report_records.contents if plain else report_heads.items
    device.usable_cores = lambda: workers
    assert MAY_FORK()
    report_index.read(FOLDER, list(report_records._files(FOLDER)))
    report_heads.items = was
    (place,) = CACHE.glob("records/*.index")
    heads, known = report_index._load(place)
    made = report_index._Made(heads.shared)
    whole = {name: [made.item(name, *item)[:2] for item in items] for name, (*_, items) in known.items()}
    later = {"sort_keys": True, "default": lambda measured: "later"}
    return json.dumps([known, heads.shared]), json.dumps(whole, **later)  # as text: NaN is not equal to itself


def interrupted(at):
    """Ctrl-C when so many files were read."""

    def now(reading, count):
        if count >= at:
            os.kill(PARENT, signal.SIGINT)
        NOW(reading, count)

    shutil.rmtree(CACHE, ignore_errors=True)
    device.usable_cores = lambda: 3
    progress.Reading.now = now
    try:
        report_index.read(FOLDER, list(report_records._files(FOLDER)))
        raise SystemExit("not interrupted")
    except KeyboardInterrupt as stop:
        assert f"of {len(list(FOLDER.iterdir()))} files were read; the next report reads" in str(stop), stop
    progress.Reading.now = NOW


living()
alone = index(plain=True)
assert index() == alone, "fast"
assert reads() > 250
assert index(workers=3) == alone, "by processes"
assert reads() == 0
dying("run 77.json")
assert index(workers=3) == alone, "one died"
assert 0 < reads() < 120, reads()
living()
interrupted(at=100)
assert not multiprocessing.active_children(), "left over"
assert index(fresh=False)[1] == alone[1], "after an interrupt"  # shared parts have numbers as they came
assert 0 < reads() < 200, reads()
print("done")

"""`python -m helpers report` of 10 to 100,000 records, as a reader calls it: a process of its own, page written."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from helpers import measure
from helpers.paths import project_root

from . import growth_records

COUNTS = (10, 1000, 100_000)
ROUNDS = 5
TIMEOUT = 600


def run(counts=COUNTS, rounds=ROUNDS):
    """Rows of seconds with the index that the first report leaves; ratios with the first report, and sizes of pages."""
    rows, ratios, seconds = {}, {}, {count: [] for count in counts}
    with tempfile.TemporaryDirectory(prefix="growth-") as folder:
        for count in counts:
            print(f"  … {count:,} records", flush=True)
            growth_records.write(Path(folder, str(count)), count)
            first = report(folder, count)
            ratios[f"report of {count:,}, the first ever"] = {"median": first, "unit": "s"}
        for _ in range(rounds):
            for count in counts:
                seconds[count].append(report(folder, count))
        rows = {f"report of {count:,}": measure.summary(seconds[count]) for count in counts}
        for count in counts:
            size = Path(folder, f"out{count}", "all_runs.html").stat().st_size
            ratios[f"page of {count:,}"] = {"median": size / 1e6, "unit": "MB"}
        shutil.rmtree(Path(folder, str(counts[-1])))
    return rows, ratios


def report(folder, count) -> float:
    """Seconds from the command to its end."""
    command = [sys.executable, "-m", "helpers", "report", os.path.join(folder, str(count))]
    environment = {**os.environ, "HELPERS_CACHE": os.path.join(folder, "cache"), "PYTHONPATH": str(project_root())}
    began = time.perf_counter()
    subprocess.run(
        [*command, "--formats", "html", "--out", os.path.join(folder, f"out{count}")],
        env=environment, check=True, stdout=subprocess.DEVNULL, timeout=TIMEOUT,
    )  # fmt: skip
    return time.perf_counter() - began

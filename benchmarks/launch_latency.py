"""Two ranks, process group initialised, one all-reduce, results back: how long does it take?

Measured in turn, in one run: `helpers.launch`, and torchrun running the same function.
"""

import subprocess
import sys
import time

import helpers
from helpers import launch, measure

UNIT = "s"
ROUNDS = 5
SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
"""


def all_reduce():
    import torch
    import torch.distributed as dist

    with helpers.distributed("cpu"):
        value = torch.ones(1)
        dist.all_reduce(value)
        return value.item()


def timed(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def ours():
    assert launch(all_reduce, 2, env={"HELPERS_DEVICE": "cpu"}) == [2.0, 2.0]


def torchrun():
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python"]
    subprocess.run([*run, sys.executable, "-c", SCRIPT], check=True, capture_output=True)


def measure_first():
    """Seconds of the first launch in a new Python process, which has to import torch."""
    code = (
        "import time; start = time.perf_counter()\n"
        "from benchmarks.launch_latency import ours; ours()\n"
        "print(time.perf_counter() - start)"
    )
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def run():
    first = [measure_first() for _ in range(ROUNDS)]
    helpers.prepare_launcher()
    ours()
    warm, theirs = [], []
    for _ in range(ROUNDS):
        warm += [timed(ours) for _ in range(4)]
        theirs.append(timed(torchrun))
    rows = {"launch, first in a process": first, "launch, warm": warm, "torchrun": theirs}
    rows = {name: measure.summary(samples) for name, samples in rows.items()}
    return rows, {"torchrun / launch": rows["torchrun"]["median"] / rows["launch, warm"]["median"]}


"""Two ranks, process group initialised, one all-reduce, results back: how long does it take?

Warm launches are measured in turn, in one run: `helpers.launch`, a bare fork of a process that has imported torch
(which does the same with no launcher around it), and torchrun. First launches, each in a new process, in turn with
a bare `import torch` in a new process; and in a new Jupyter kernel, for what a reader meets.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time

import helpers
from helpers import launch, measure

UNIT = "s"
ROUNDS, EACH = 5, 4  # rounds; launches of the quick ones in each
READING = 5.0  # s between a reader's first cell and the first launch
TORCHRUN = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
"""
WARM, FORK, RUN = "launch, warm", "bare fork", "torchrun"
FIRST, IMPORT = "launch, first in a process", "import torch in a new process"
SAME_CELL, EARLIER = (
    "launch, first in a kernel, one cell",
    f"launch, first in a kernel, {READING:g} s after import helpers",
)
BY_RUN, BY_FORK, BY_IMPORT = "torchrun / launch", "launch / bare fork", "first launch / import torch"
TARGETS = {WARM: ("<=", 0.10), BY_RUN: (">=", 40), BY_FORK: ("<=", 1.5), FIRST: ("<=", 2.0)}


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
    assert launch(all_reduce, 2, threads=1, env={"HELPERS_DEVICE": "cpu"}) == [2.0, 2.0]


def torchrun():
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python"]
    subprocess.run([*run, sys.executable, "-c", TORCHRUN], check=True, capture_output=True)


class BareFork:
    """A process that has imported torch, and forks two ranks whenever it is told to; use it as a context manager."""

    def __init__(self, module="benchmarks.cases.fork"):
        self.process = subprocess.Popen(
            [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        assert json.loads(self.process.stdout.readline()) == [2.0, 2.0]

    def __enter__(self):
        self()
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(timeout=10)
        self.process.stdout.close()


def in_new_process(code):
    """Seconds that `code` takes in a new Python process, from its first line on."""
    code = f"import time; start = time.perf_counter()\n{code}\nprint(time.perf_counter() - start)"
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def in_new_kernel(reading):
    """Seconds of the first launch in a new kernel: of one cell, or after a cell that imported helpers and a wait."""
    from .kernel import kernel  # not above: ranks import this module for their function

    function = "from benchmarks.launch_latency import all_reduce, ours"
    with tempfile.TemporaryDirectory() as folder, kernel(sys.executable, folder) as here:
        if not reading:
            return _passed(here.run(f"{function}\nours()"))
        _passed(here.run(function))
        time.sleep(reading)
        return _passed(here.run("ours()"))


def _passed(outcome):
    assert not outcome.error and outcome.seconds is not None, outcome.error or outcome.text
    return outcome.seconds


def run():
    samples = {name: [] for name in (WARM, FORK, RUN, FIRST, IMPORT, SAME_CELL, EARLIER)}
    by_run, by_fork = [], []
    for _ in range(ROUNDS):
        samples[IMPORT].append(in_new_process("import torch"))
        samples[FIRST].append(in_new_process("from benchmarks.launch_latency import ours; ours()"))
        samples[SAME_CELL].append(in_new_kernel(0))
        samples[EARLIER].append(in_new_kernel(READING))
        print(f"  first launches: {', '.join(f'{each[-1]:.2f} s' for each in samples.values() if each)}", flush=True)
    helpers.prepare_launcher()
    ours()
    with BareFork() as fork:
        for number in range(ROUNDS):
            contenders = [(WARM, ours), (FORK, fork)]
            found = {WARM: [], FORK: []}
            for turn in range(EACH):
                for name, work in contenders if (number + turn) % 2 else reversed(contenders):
                    found[name].append(timed(work))
            samples[RUN].append(timed(torchrun))
            warm = statistics.median(found[WARM])
            by_run.append(samples[RUN][-1] / warm)
            by_fork.append(warm / statistics.median(found[FORK]))
            for name, seconds in found.items():
                samples[name] += seconds
            print(
                f"  round {number + 1} of {ROUNDS}: launch {warm:.3f} s, torchrun {samples[RUN][-1]:.2f} s", flush=True
            )
    rows = {name: measure.summary(each) for name, each in samples.items()}
    by_import = [a / b for a, b in zip(samples[FIRST], samples[IMPORT], strict=True)]
    return rows, {
        name: measure.with_interval(each)
        for name, each in ((BY_RUN, by_run), (BY_FORK, by_fork), (BY_IMPORT, by_import))
    }


def reasons(rows, ratios):
    told = {}
    fork, warm, first = (rows[name]["median"] for name in (FORK, WARM, FIRST))
    if warm > TARGETS[WARM][1]:
        told[WARM] = (
            f"a bare fork, with no launcher, takes {fork:.3f} s of the {warm:.3f} s ({fork / warm:.0%}): joining gloo "
            "and leaving it, and two forks"
        )
    if ratios[BY_RUN]["median"] < TARGETS[BY_RUN][1]:
        told[BY_RUN] = (
            f"torchrun takes {rows[RUN]['median']:.2f} s and launch {warm:.3f} s, bare fork {fork:.3f} s of it"
        )
    if ratios[BY_FORK]["median"] > TARGETS[BY_FORK][1]:
        told[BY_FORK] = f"launch adds {warm - fork:.3f} s to {fork:.3f} s: the function's way there, output and results"
    if first > TARGETS[FIRST][1]:
        share = rows[IMPORT]["median"]
        told[FIRST] = (
            f"`import torch` alone takes {share:.2f} s of the {first:.2f} s ({share / first:.0%}) in a new process; "
            f"{rows[EARLIER]['median']:.2f} s where a reader has imported helpers {READING:g} s before"
        )
    return told


def notes(rows, ratios):
    return [
        "The first launch in a process counts from its first line, `import helpers` included. In a kernel where "
        f"helpers was imported {READING:g} s before, the server has started meanwhile: "
        f"{rows[EARLIER]['median']:.2f} s.",
        "A rank of launch hands its results over while gloo's threads still end, which takes them 20 ms; the bare fork "
        "waits for them, as a plain script does. Its memory is not gathered in huge pages, as that of launch's server "
        "is.",
    ]

"""Growth: launches of 1 to 16 ranks with all their memory, and sets of 10,000 to 1,000,000 images."""

import os
import time
from pathlib import Path

import helpers
from helpers import launch, measure

UNIT = "s"
OWN = "own memory / size of the largest set"
TARGETS = {OWN: ("<=", 0.1)}
RANKS = (1, 2, 4, 8, 16)
ROUNDS = 7
CPU = {"HELPERS_DEVICE": "cpu"}


def all_reduce():
    """What a rank of a timed launch does."""
    import torch
    import torch.distributed as dist

    with helpers.distributed("cpu"):
        value = torch.ones(1)
        dist.all_reduce(value)
        return value.item()


def memory(kernel):
    """On rank 0 the PSS in bytes of all ranks, their fork server and the process `kernel`, while all are there."""
    import torch.distributed as dist

    with helpers.distributed("cpu") as world:
        pids = [None] * world.size
        dist.all_gather_object(pids, os.getpid())
        found = [pss(pid) for pid in [*pids, os.getppid(), kernel]] if world.rank == 0 else []
        dist.barrier()
        return found


def pss(pid, key="Pss") -> int:
    """Bytes of memory that a process holds, its share of pages that it has in common with others."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return 1024 * int(line.split()[1])
    return 0


def launches(ranks=RANKS, rounds=ROUNDS):
    """Rows of seconds and megabytes, and ratios of the most ranks to the fewest."""
    helpers.prepare_launcher()
    for n in ranks:
        assert launch(all_reduce, n, threads=1, env=CPU) == [n] * n
    seconds, held = {n: [] for n in ranks}, {n: [] for n in ranks}
    for k in range(rounds):
        for n in ranks[k % len(ranks) :] + ranks[: k % len(ranks)]:
            began = time.perf_counter()
            launch(all_reduce, n, threads=1, env=CPU)
            seconds[n].append(time.perf_counter() - began)
            if os.path.exists("/proc/self/smaps_rollup"):
                held[n].append(sum(launch(memory, n, os.getpid(), threads=1, env=CPU)[0]) / 1e6)
    rows = {f"launch, {named(n)}": measure.summary(seconds[n]) for n in ranks}
    rows |= {f"memory, {named(n)}": {**measure.summary(held[n]), "unit": "MB"} for n in ranks if held[n]}
    most, least = ranks[-1], ranks[0]
    ratios = {f"launch, {most} ranks / {least}": _ratio(rows, "launch", most, least)}
    if held[most]:
        more = rows[f"memory, {named(most)}"]["median"] - rows[f"memory, {named(least)}"]["median"]
        ratios["memory, each further rank"] = {"median": more / (most - least), "unit": "MB"}
    return rows, ratios


def named(n):
    """Such as "2 ranks"."""
    return f"{n} rank{'s' * (n > 1)}"


def _ratio(rows, what, most, least):
    return rows[f"{what}, {named(most)}"]["median"] / rows[f"{what}, {named(least)}"]["median"]


def run():
    """Rows and ratios of the launches and of the sets."""
    from . import growth_sets  # not above: ranks import this module for their functions

    rows, ratios = launches()
    of_sets = growth_sets.run()
    return {**rows, **of_sets[0]}, {**ratios, **of_sets[1]}


def reasons(rows, ratios):
    return {OWN: "order and augmentation of an epoch are drawn for all images at its start"}


def notes(rows, ratios):
    return [
        "Memory of launches is the sum of PSS over ranks, fork server and the launching process. Files were in the "
        "system's memory when they were read."
    ]

"""hvd against DDP: two ranks, gloo, ResNet-18 on 32×32; then the same over a link of 200 Mbit/s; then small tensors.

The methods train equal copies of the network in the same two ranks, and their steps take turns. There are several
launches, since where memory comes to lie makes all steps of a launch quicker or slower by some percent. The slow link
needs root on Linux (see helpers/cluster/twohosts.py); without it that part is left out.

As many named tensors as ResNet-50 has parameters, but small ones, show what a tensor costs: four ranks reduce them, and
in turns with that one flat tensor of as many bytes by torch.distributed.
"""

import functools
import statistics
import time

from helpers import launch, measure
from helpers.cluster import twohosts
from helpers.training import models
from notebooks.scripts import slow_link

UNIT = "s a step"
PAIRS, FP16 = "no limit: hvd / DDP, medians of pairs", "200 Mbit/s: DDP / hvd, fp16"
MANY = "161 tensors of 4 kB, 4 ranks: hvd / one flat all-reduce, medians of pairs"
TARGETS = {PAIRS: ("<=", 1.03), FP16: (">=", 1.8), MANY: ("<=", 2.0)}
LAUNCHES, STEPS = 7, 12
FAST, SLOW = ("DDP", "hvd"), ("DDP", "hvd, fp16", "DDP, fp16", "DDP, PowerSGD")
RESNET = functools.partial(models.build, "resnet18", 10)
CPU = {"HELPERS_DEVICE": "cpu"}


def nothing_sent():
    return 0


def many_and_one(steps, count=161, length=1000):
    """On each rank: [(seconds of `count` all-reduces, seconds of one of as many bytes)] of steps that take turns."""
    import torch
    import torch.distributed as dist

    import platforms.horovod.torch as hvd

    dist.init_process_group("gloo")
    hvd.init()
    tensors, flat = [torch.ones(length) for _ in range(count)], torch.ones(count * length)

    def many():
        handles = [hvd.allreduce_async_(tensor, name=f"p{n}") for n, tensor in enumerate(tensors)]
        for handle in handles:
            hvd.synchronize(handle)

    def one():
        dist.all_reduce(flat)
        flat.div_(hvd.size())

    def seconds(work):
        dist.barrier()
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    pairs = [(seconds(many), seconds(one)) for _ in range(5 + steps)]
    assert all(torch.equal(tensor, flat[:length]) for tensor in tensors)
    hvd.shutdown()
    return pairs[5:]


def small_tensors():
    """Rows and the ratio of `many_and_one`; a step is as long as on the rank that needs the longest."""
    many, one, of_launches = [], [], []
    for _ in range(LAUNCHES):
        ranks = launch(many_and_one, 4, 40, threads=1, env=CPU, timeout=600)
        steps = [(max(a for a, _ in each), max(b for _, b in each)) for each in zip(*ranks, strict=True)]
        of_launches.append(statistics.median(a / b for a, b in steps))
        many += [a for a, _ in steps]
        one += [b for _, b in steps]
    rows = {"161 tensors: hvd": measure.summary(many), "161 tensors: one flat all-reduce": measure.summary(one)}
    return rows, {MANY: measure.with_interval(of_launches)}


def by_name(rows):
    return {row["method"]: row for row in rows}


def run():
    options = {"batch": 32, "sent_so_far": nothing_sent, "threads": 1, "env": CPU, "timeout": 600}
    seconds, of_launches = {name: [] for name in FAST}, []
    for number in range(LAUNCHES):
        fast = by_name(launch(slow_link.compare, 2, FAST, RESNET, STEPS, **options)[0])
        assert fast["DDP"]["losses"] == fast["hvd"]["losses"], "hvd and DDP must train alike"
        pairs = zip(fast["hvd"]["seconds"], fast["DDP"]["seconds"], strict=True)
        of_launches.append(statistics.median(a / b for a, b in pairs))
        for name, row in fast.items():
            seconds[name] += row["seconds"]
        print(f"  no limit, launch {number + 1} of {LAUNCHES}: hvd / DDP {of_launches[-1]:.3f}", flush=True)
    rows = {f"no limit: {name}": measure.summary(spent) for name, spent in seconds.items()}
    ratios = {
        "no limit: hvd / DDP": rows["no limit: hvd"]["median"] / rows["no limit: DDP"]["median"],
        PAIRS: measure.with_interval(of_launches),
    }
    small = small_tensors()
    rows, ratios = rows | small[0], ratios | small[1]
    reason = twohosts.why_not()
    if reason:
        print(f"  no slow link here: {reason}")
        return rows, ratios
    slow = twohosts.run(slow_link.compare, SLOW, RESNET, 5, rate=slow_link.RATE, timeout=600)[0]
    slow = by_name(slow)
    rows |= {f"200 Mbit/s: {name}": measure.summary(row["seconds"]) for name, row in slow.items()}
    plain = rows["200 Mbit/s: DDP"]["median"]
    ratios |= {f"200 Mbit/s: DDP / {name}": plain / rows[f"200 Mbit/s: {name}"]["median"] for name in SLOW[1:]}
    for name, row in slow.items():
        print(f"  200 Mbit/s: {name:<20} {row['sent'] / 1e6:8.2f} MB a step and rank, loss {row['loss']:.4f}")
    return rows, ratios


def reasons(rows, ratios):
    """What the numbers say of targets that were missed."""
    many, one = rows["161 tensors: hvd"], rows["161 tensors: one flat all-reduce"]
    own, theirs = rows["no limit: hvd"], rows["no limit: DDP"]
    said = {
        MANY: f"{1e3 * many['median']:.1f} ms beside {1e3 * one['median']:.1f} ms; Python's share of a tensor, "
        f"from its submission to its result, is {1e6 * (many['median'] - one['median']) / 161:.0f} µs at most",
        PAIRS: f"{own['median']:.3f} s beside {theirs['median']:.3f} s; the middle half of DDP's own steps goes from "
        f"{theirs['q1']:.3f} to {theirs['q3']:.3f} s, and a launch's median from {ratios[PAIRS]['min']:.2f} to "
        f"{ratios[PAIRS]['max']:.2f}",
    }
    if FP16 not in ratios:
        return {**said, FP16: f"no slow link here: {twohosts.why_not()}"}
    half, plain = (rows[f"200 Mbit/s: {name}"]["median"] for name in ("hvd, fp16", "DDP"))
    less = f"half the bytes save at most half of the exchange; of a step of {plain:.2f} s {half:.2f} s are left"
    return {**said, FP16: less}

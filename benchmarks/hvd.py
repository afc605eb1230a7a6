"""hvd against DDP: two ranks, gloo, ResNet-18 on 32×32; then the same over a link of 200 Mbit/s.

The methods train equal copies of the network in the same two ranks, and their steps take turns. There are several
launches, since where memory comes to lie makes all steps of a launch quicker or slower by some percent. The slow link
needs root on Linux (see helpers/hosts/twohosts.py); without it only the first part is measured.
"""

import functools
import statistics

from helpers import launch, measure
from helpers.hosts import twohosts
from helpers.training import models
from notebooks.scripts import slow_link

UNIT = "s a step"
PAIRS, FP16 = "no limit: hvd / DDP, medians of pairs", "200 Mbit/s: DDP / hvd, fp16"
TARGETS = {PAIRS: ("<=", 1.03), FP16: (">=", 1.8)}
LAUNCHES, STEPS = 7, 12
FAST, SLOW = ("DDP", "hvd"), ("DDP", "hvd, fp16", "DDP, fp16", "DDP, PowerSGD")
RESNET = functools.partial(models.build, "resnet18", 10)
CPU = {"HELPERS_DEVICE": "cpu"}


def nothing_sent():
    return 0


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
        PAIRS: measure.summary(of_launches),
    }
    reason = twohosts.why_not()
    if reason:
        print(f"  no slow link here: {reason}")
        return rows, ratios
    slow = twohosts.run(slow_link.compare, SLOW, RESNET, 5, rate=slow_link.RATE, by="tbf", timeout=600)[0]
    slow = by_name(slow)
    rows |= {f"200 Mbit/s: {name}": measure.summary(row["seconds"]) for name, row in slow.items()}
    plain = rows["200 Mbit/s: DDP"]["median"]
    ratios |= {f"200 Mbit/s: DDP / {name}": plain / rows[f"200 Mbit/s: {name}"]["median"] for name in SLOW[1:]}
    for name, row in slow.items():
        print(f"  200 Mbit/s: {name:<20} {row['sent'] / 1e6:8.2f} MB a step and rank, loss {row['loss']:.4f}")
    return rows, ratios


def reasons(rows, ratios):
    """What the numbers say of targets that were missed."""
    if FP16 not in ratios:
        return {FP16: f"no slow link here: {twohosts.why_not()}"}
    half, plain = (rows[f"200 Mbit/s: {name}"]["median"] for name in ("hvd, fp16", "DDP"))
    own, theirs = rows["no limit: hvd"], rows["no limit: DDP"]
    return {
        FP16: f"half the bytes save at most half of the exchange; of a step of {plain:.2f} s {half:.2f} s are left",
        PAIRS: f"{own['median']:.3f} s beside {theirs['median']:.3f} s; the middle half of DDP's own steps goes from "
        f"{theirs['q1']:.3f} to {theirs['q3']:.3f} s, and a launch's median from {ratios[PAIRS]['min']:.2f} to "
        f"{ratios[PAIRS]['max']:.2f}",
    }

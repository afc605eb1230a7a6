"""The top of the ladder on a CPU: ResNet-50 at 32×32 with DDP ×2, bf16 and channels last, beside one fp32 thread.

All are runs of the kit's loop, one thread a rank; they take turns, step by step. The share of the peak is counted
FLOPs of a step, divided by its time and by the measured rate of a product of matrices in the same format.
A CPU that only emulates bf16 has its top in fp32; what emulation costs is measured once, on few images.
"""

import torch

from helpers import measure
from helpers.data import sets

from . import peak, turns
from .cases import loop

UNIT = "images/s"
MODEL, DATA, PIXELS, BATCHES = "resnet50", "mock", 32, (256, 128)
EMULATED_BATCH = 8  # where bf16 is emulated: a step of 256 images would take most of a minute
ROUNDS = 5
CPU = {"HELPERS_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": ""}
BASE, LAST, LAST_DDP = "fp32", "fp32, channels last", "DDP ×2, fp32, channels last"
ONE, TOP = "bf16, channels last", "DDP ×2, bf16, channels last"
BF16 = (ONE, TOP)


def ratio_names(batch):
    """(top of the ladder / baseline, one rank / baseline, one rank's share of the peak), as the table calls them."""
    return f"{TOP}, speed-up, b{batch}", f"{ONE}, speed-up, b{batch}", f"{ONE}, of the peak, b{batch}"


TARGETS = {
    name: (">=", goal) for batch in BATCHES for name, goal in zip(ratio_names(batch), (3.5, 1.8, 0.85), strict=True)
}


def variants(batch):
    """Those that are measured at a local batch."""
    if peak.has_bf16():
        return BASE, LAST, LAST_DDP, ONE, TOP
    return (BASE, LAST, LAST_DDP) + (ONE,) * (batch == BATCHES[0])


def batch_of(variant, batch):
    """The local batch that a variant is really measured with."""
    return EMULATED_BATCH if variant in BF16 and not peak.has_bf16() else batch


def contenders(batch, steps):
    """For turns.measured, one local batch."""
    common = {"model": MODEL, "data": DATA, "device": "cpu", "threads": 1, "steps": steps, "evaluate": False}
    found = {}
    for variant in variants(batch):
        ranks = 2 if variant.startswith("DDP") else 1
        settings = {**common, "local_batch": batch_of(variant, batch), "channels_last": variant != BASE}
        if ranks > 1:
            settings |= {"strategy": "ddp", "nproc_per_node": ranks}
        if variant in BF16:
            settings["precision"] = "bf16"
        found[variant] = loop.kit(**settings), ranks, CPU
    return found


def rates(batch):
    """{variant: images a second of all ranks together, round by round}."""
    parties = contenders(batch, turns.steps_needed(ROUNDS, 1))
    say = lambda text: print(f"  … batch {batch}: {text}", flush=True)  # noqa: E731
    found = turns.measured(parties, ROUNDS, 1, say=say)
    return {
        name: [batch_of(name, batch) * parties[name][1] / seconds for seconds in one["seconds"]]
        for name, one in found.items()
    }


def ratios_of(rates, batch, peaks, flops):
    """Speed-ups and shares of the peak from `rates`, the peaks {"fp32", "bf16"} (FLOP/s) and FLOPs an image.

    Without instructions for bf16 there are those of fp32: a share of what the CPU cannot do says nothing.
    """

    def of_peak(variant, kind):
        return measure.with_interval(rate * flops / peaks[kind] for rate in rates[variant])

    found = {}
    if peak.has_bf16():
        top, one, share = ratio_names(batch)
        found |= {top: turns.ratio(rates[TOP], rates[BASE]), one: turns.ratio(rates[ONE], rates[BASE])}
        found[share] = of_peak(ONE, "bf16")
    for variant in (LAST_DDP, LAST):
        found[f"{variant}, speed-up, b{batch}"] = turns.ratio(rates[variant], rates[BASE])
    for variant in (BASE, LAST):
        found[f"{variant}, of the peak, b{batch}"] = of_peak(variant, "fp32")
    return found


def run():
    sets.ensure(DATA)
    torch.set_num_threads(1)
    limits = _limits()
    found = {batch: rates(batch) for batch in BATCHES}
    limits = {kind: max(limits[kind], now, key=lambda one: one["median"]) for kind, now in _limits().items()}
    rows = {f"product of matrices, {kind}": {**one, "unit": "FLOP/s"} for kind, one in limits.items()}
    peaks, flops = {kind: one["median"] for kind, one in limits.items()}, peak.flops_of_image(MODEL, PIXELS)
    ratios = {}
    for batch in BATCHES:
        rows |= {
            f"{name}, b{batch}": {**measure.summary(spent), "local_batch": batch_of(name, batch)}
            for name, spent in found[batch].items()
        }
        ratios |= ratios_of(found[batch], batch, peaks, flops)
    return rows, ratios


def _limits():
    """Rates of a product of matrices; measured before and after, since a neighbour may be at work for a while."""
    return {kind: peak.matmul_peak(dtype) for kind, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16))}


def reasons(rows, ratios):
    if not peak.has_bf16():
        return dict.fromkeys(TARGETS, f"not measured here: {peak.why_no_bf16()}")
    missed = [name for name, (_, goal) in TARGETS.items() if ratios[name]["median"] < goal]
    gain = _gain(rows)
    if gain < 1:
        why = (
            f"bf16 is slow here: a product of matrices runs at {gain:.2f} times the rate of fp32; with fp32 the top "
            f"is {ratios[f'{LAST_DDP}, speed-up, b{BATCHES[0]}']['median']:.2f} here"
        )
        return dict.fromkeys(missed, why)
    shares = {batch: ratios[ratio_names(batch)[2]]["median"] for batch in BATCHES}
    why = f"bf16 multiplies {gain:.2f} times as fast as fp32 here, and the step reaches " + ", ".join(
        f"{share:.0%} of that at batch {batch}" for batch, share in shares.items()
    )
    return dict.fromkeys(missed, why)


def notes(rows, ratios):
    said = [f"{peak.flops_of_image(MODEL, PIXELS) / 1e9:.3f} GFLOP an image, forward and backward, were counted."]
    for batch in BATCHES:
        top, one, share, base = (
            ratios[f"{name}, b{batch}"]["median"]
            for name in (f"{LAST_DDP}, speed-up", f"{LAST}, speed-up", f"{LAST}, of the peak", f"{BASE}, of the peak")
        )
        said.append(
            f"In fp32 with channels last, local batch {batch}, DDP ×2 is {top:.2f} times as fast as the baseline and "
            f"one rank {one:.2f} times; it reaches {share:.0%} of the measured peak, the baseline {base:.0%}."
        )
    flags = peak.bf16_flags()
    if flags:
        said.append(f"For bf16 the CPU has {', '.join(flags)}.")
        return said
    emulated = rows[f"{ONE}, b{BATCHES[0]}"]["median"]
    said.append(
        f"Emulated, bf16 multiplies matrices at {_gain(rows):.2f} times the rate of fp32, and one rank trains "
        f"{emulated:.1f} images/s at a local batch of {EMULATED_BATCH}; at {BATCHES[0]} one step would take "
        f"{BATCHES[0] / emulated:.0f} s."
    )
    return said


def _gain(rows):
    """How many times as fast as in fp32 a product of matrices is in bf16."""
    return rows["product of matrices, bf16"]["median"] / rows["product of matrices, fp32"]["median"]

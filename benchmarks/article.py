"""The source article's script, beside the kit's best path on the same device: where does a step go?

ResNet-50 at 32×32. One device each: on a CPU one thread, with a batch of 256. On CUDA the batch is that of the
article's four GPUs together, so that an epoch of one device is the same training as the article's.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch

from helpers import device, measure
from helpers.costmodel import published
from helpers.data import sets

from . import peak, turns
from .cases import article as case

UNIT = "s a step"
MODEL, DATA, PIXELS, EPOCH = "resnet50", "mock", 32, 50_000
SCRIPT, KIT = "article's script", "the kit's best path"
FASTER = f"{KIT} / {SCRIPT}, images a second"
EPOCHS = "article's epoch on 4 GPUs / ours on one"
TARGETS = {EPOCHS: (">=", 5)}
ROUNDS = 5


def best_settings(where) -> dict:
    """Of a RunConfig: the kit's best path on a device of kind `where`, from what the device can do."""
    settings = {"model": MODEL, "data": DATA, "device": where, "channels_last": True, "evaluate": False, "threads": 1}
    speeds = device.dtypes(where)
    half = speeds.get("bfloat16", 0) > 1.2 and (where != "cpu" or peak.has_bf16())
    settings |= {"precision": "bf16" if half else "fp32", "global_batch": 256}
    if where != "cpu":
        settings |= {"compiler": "auto", "global_batch": 1024}  # 4 × 256 on one device
    return settings


def block_of(where, batch):
    """Steps in a block: on a CPU one, on a GPU an epoch, or batches that workers prepare ahead would be for nothing."""
    return 1 if where == "cpu" else EPOCH // batch


def contenders(where, rounds, warm, folder):
    """For turns.measured: {name: …}, and {name: RunConfig-like facts} with the batch and format of each."""
    settings = best_settings(where)
    batches = {SCRIPT: 256, KIT: settings["global_batch"]}
    # Both take turns by the same number of steps, that of the larger number of batches in an epoch.
    block = block_of(where, batches[SCRIPT])
    steps = turns.steps_needed(rounds, block, warm)
    python = [sys.executable, "-m"]
    torchrun = [*python, "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "-m"]
    commands = {
        SCRIPT: [*torchrun, "benchmarks.cases.article", "script", str(steps)],
        KIT: [*python, "benchmarks.cases.article", "kit", json.dumps({"settings": {**settings, "steps": steps}})],
    }
    places = {SCRIPT: folder / "script.json", KIT: folder / "kit.json"}
    cpu = {"CUDA_VISIBLE_DEVICES": "", "HELPERS_DEVICE": "cpu"} if where == "cpu" else {}
    parties = {name: (command, 1, {**cpu, case.OUT: str(places[name])}) for name, command in commands.items()}
    return parties, places, batches, block


def breakdown(steps) -> dict:
    """{part: measure.summary of its seconds, with "share", its part of the whole time} of Marks.steps."""
    whole = sum(sum(step.values()) for step in steps)
    return {
        part: {**measure.summary(step[part] for step in steps), "share": sum(step[part] for step in steps) / whole}
        for part in case.PARTS
    }


def lost(parts, flops, limit) -> dict:
    """Shares of a step's time, which add up to 1: computing at the peak `limit` (FLOP/s), and what goes beyond it.

    Args:
        parts: {name: {"median": seconds}}.
        flops: {name: FLOPs} of the parts that compute, forward and backward.
    """
    whole = sum(parts[name]["median"] for name in parts)
    ideal = {name: work / limit for name, work in flops.items()}
    found = {"arithmetic at the peak": sum(ideal.values()) / whole}
    for name, row in parts.items():
        words = f"{name} beyond it" if name in ideal else name
        found[words] = (row["median"] - ideal.get(name, 0)) / whole
    return found


def run():
    where = device.machine().kind if device.machine().kind == "cuda" else "cpu"
    sets.ensure(DATA)
    torch.set_num_threads(1)
    warm = 1 if where == "cpu" else 2
    kinds = {SCRIPT: torch.float32, KIT: torch.float32}
    if best_settings(where)["precision"] == "bf16":
        kinds[KIT] = torch.bfloat16
    before = _limits(kinds, where)
    with tempfile.TemporaryDirectory() as folder:
        parties, places, batches, block = contenders(where, ROUNDS, warm, Path(folder))
        say = lambda text: print(f"  … {text}", flush=True)  # noqa: E731
        found = turns.measured(parties, ROUNDS, block, warm, say)
        kept = slice(warm * block, (warm + ROUNDS) * block)
        steps = {name: json.loads(path.read_text())[kept] for name, path in places.items()}
    limits = {name: max(before[name], now) for name, now in _limits(kinds, where).items()}
    return table(where, {name: one["seconds"] for name, one in found.items()}, steps, batches, limits)


def _limits(kinds, where):
    """{name: measured peak, FLOP/s, of the format in `kinds`}, on a device of kind `where`."""
    found = {dtype: peak.matmul_peak(dtype, device.of_rank(0, where))["median"] for dtype in set(kinds.values())}
    return {name: found[dtype] for name, dtype in kinds.items()}


def table(where, seconds, steps, batches, limits):
    """(rows, ratios) from seconds of a step round by round, the parts of each step, batches and peaks (FLOP/s)."""
    flops, forward = peak.flops_of_image(MODEL, PIXELS), peak.flops_of_image(MODEL, PIXELS, backward=False)
    rows, ratios = {}, {}
    for name, spent in seconds.items():
        rows[name] = {**measure.summary(spent), "batch": batches[name], "peak": limits[name]}
        parts = breakdown(steps[name])
        rows |= {f"{name}: {part}": row for part, row in parts.items()}
        share = [batches[name] * flops / limits[name] / one for one in spent]
        ratios[f"{name}, of the peak"] = measure.with_interval(share)
        work = {"forward": batches[name] * forward, "backward": batches[name] * (flops - forward)}
        shares = lost(parts, work, limits[name])
        ratios |= {f"{name}, share of the step: {what}": share for what, share in shares.items()}
    rates = {name: [batches[name] / one for one in spent] for name, spent in seconds.items()}
    ratios[FASTER] = turns.ratio(rates[KIT], rates[SCRIPT])
    if where == "cuda":
        ratios[EPOCHS] = measure.with_interval(article_epoch() * rate / EPOCH for rate in rates[KIT])
    return rows, ratios


def article_epoch() -> float:
    """Seconds an epoch of CIFAR-10 on 4 GPUs, as the article has it."""
    rows = published.load("scaling")["tables"]["cifar ladder"]["rows"]
    return next(row["value"] for row in rows if row["devices"] == 4)


def reasons(rows, ratios):
    if EPOCHS not in ratios:
        return {EPOCHS: "not measured here: it needs a CUDA device"}
    if ratios[EPOCHS]["median"] >= TARGETS[EPOCHS][1]:
        return {}
    share = ratios[f"{KIT}, of the peak"]["median"]
    return {EPOCHS: f"the kit's best path reaches {share:.0%} of this device's measured peak; {_where(KIT, ratios)}"}


def notes(rows, ratios):
    said = [
        f"{name}: batch {rows[name]['batch']}, {rows[name]['median']:.3g} s a step, "
        f"{ratios[f'{name}, of the peak']['median']:.0%} of the measured {rows[name]['peak'] / 1e9:.0f} GFLOP/s; "
        f"{_where(name, ratios)}."
        for name in (SCRIPT, KIT)
    ]
    said.append("One device needs no communication, so that has no row; benchmark scaling has its cost.")
    if EPOCHS not in ratios:
        default = best_settings("cpu")
        said.append(
            f"One thread of the CPU is the device here. The kit's best path is the fast input path, channels last and "
            f"{default['precision']}; compiling is left out, because it takes longer than all of this benchmark."
        )
        said.append(f"No CUDA device here, so the article's epoch of {article_epoch()} s on 4 GPUs has no counterpart.")
    return said


def _where(name, ratios):
    """A step's shares, in words."""
    start = f"{name}, share of the step: "
    shares = {what.removeprefix(start): share for what, share in ratios.items() if what.startswith(start)}
    return "of the step " + ", ".join(f"{what} {share:.0%}" for what, share in shares.items())

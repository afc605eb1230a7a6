"""Data parallelism on two single-threaded CPU ranks: how much of the second rank's computing arrives?

The kit's default model and batch. Beside one rank and two ranks run two unconnected runs at the same time: they show
what the two cores share (memory, cache, clock), which no way of training on both can win back. Everything is started
anew several times.
"""

from helpers import RunConfig, measure
from helpers.data import sets

from . import turns
from .cases import loop

UNIT = "s a step"
ONE, LOCAL, GLOBAL, ALONE = "1 rank", "DDP ×2, same local batch", "DDP ×2, same global batch", "2 runs without DDP"
FIXED_LOCAL, FIXED_GLOBAL = "efficiency, same local batch", "efficiency, same global batch"
SHARED, EXCHANGE = "what two busy cores leave each other", "efficiency beside 2 runs without DDP"
TARGETS = {FIXED_LOCAL: (">=", 0.92)}
CASTS, ROUNDS, BLOCK = 5, 5, 10
CPU = {"HELPERS_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": ""}


def contenders(steps):
    """For turns.measured."""
    default = RunConfig(device="cpu")
    common = {"model": default.model, "data": default.data, "threads": 1, "steps": steps, "evaluate": False}
    one = {**common, "device": "cpu", "global_batch": default.global_batch}
    ddp = {**one, "strategy": "ddp", "nproc_per_node": 2}
    return {
        ONE: (loop.kit(**one), 1, CPU),
        LOCAL: (loop.kit(**{**ddp, "global_batch": 2 * default.global_batch}), 2, CPU),
        GLOBAL: (loop.kit(**ddp), 2, CPU),
        ALONE: (loop.kit(ranks=2, **one), 2, CPU),
    }


def ratios_of(seconds):
    """Efficiencies from {name: seconds of a step, round by round}: speed-up in images a second, divided by 2 ranks."""
    one = seconds[ONE]
    return {
        FIXED_LOCAL: turns.ratio(one, seconds[LOCAL]),
        FIXED_GLOBAL: turns.ratio(one, seconds[GLOBAL], 0.5),
        SHARED: turns.ratio(one, seconds[ALONE]),
        EXCHANGE: turns.ratio(seconds[ALONE], seconds[LOCAL]),
    }


def run():
    sets.ensure(RunConfig(device="cpu").data)
    steps = turns.steps_needed(ROUNDS, BLOCK)

    def play(number):
        print(f"  … {number + 1} of {CASTS}", flush=True)
        return {name: one["seconds"] for name, one in turns.measured(contenders(steps), ROUNDS, BLOCK).items()}

    seconds = turns.medians(play, CASTS)
    return {name: measure.summary(spent) for name, spent in seconds.items()}, ratios_of(seconds)


def reasons(rows, ratios):
    if ratios[FIXED_LOCAL]["median"] >= TARGETS[FIXED_LOCAL][1]:
        return {}
    one, ddp, alone = (1e3 * rows[name]["median"] for name in (ONE, LOCAL, ALONE))
    return {
        FIXED_LOCAL: f"a step takes {one:.1f} ms on one rank, {alone:.1f} ms where the other core runs another that it "
        f"need not wait for, {ddp:.1f} ms with DDP: {alone - one:+.1f} ms are the machine's, "
        f"{ddp - alone:+.1f} ms the exchange's and the wait for the slower rank"
    }


def notes(rows, ratios):
    default = RunConfig(device="cpu")
    return [f"{default.model} on {default.data}, {default.global_batch} images a step on one rank, one thread a rank."]

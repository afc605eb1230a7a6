"""What the loop around a training step costs: the kit's, a script by hand under torchrun, Fabric, accelerate.

Two ranks of one CPU thread train ResNet-8 on the same batches in the same order; the runs take turns, and their
losses must be equal, number by number, or there is no result.
"""

from helpers import datasets, measure

from . import in_turn, loop_case, loop_script, peers_envs, turns

UNIT = "s a step"
KIT, BY_HAND, SAME_MALLOC = "the kit's loop", "by hand, torchrun", "by hand, same malloc"
PEERS = {"Lightning Fabric": "fabric", "accelerate": "accelerate"}
PINS = ("lightning-fabric==2.6.6", "accelerate==1.15.0")
COST, COST_SAME = f"{KIT} / {BY_HAND}", f"{KIT} / {SAME_MALLOC}"
TARGETS = {COST: ("<=", 1.01), COST_SAME: ("<=", 1.01)}
ROUNDS, BLOCK = 16, 8
# What helpers/memory.py does in a rank of the kit, told to glibc from outside (mallopt(3)).
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(32 * 2**20), "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}
CPU = {"HELPERS_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": ""}
_why_absent = {}


def contenders(steps, ranks=2):
    """For turns.measured: the kit, and the script by hand with and without the kit's settings of malloc."""
    kit = loop_case.command(
        model=loop_script.MODEL, data=loop_script.DATA, strategy="ddp", nproc_per_node=ranks, threads=1, steps=steps,
        local_batch=loop_script.LOCAL_BATCH, evaluate=False, device="cpu", **loop_script.SGD,
    )  # fmt: skip
    script = loop_script.command("plain", steps, ranks=ranks)
    return {
        KIT: (kit, ranks, CPU), BY_HAND: (script, ranks, CPU), SAME_MALLOC: (script, ranks, {**CPU, **MALLOC}),
    }  # fmt: skip


def peers(steps):
    """The other libraries' loops, in an environment of their own; none where it cannot be made."""
    try:
        python = peers_envs.python("loops", PINS)
    except peers_envs.NoEnvironment as error:
        _why_absent.update(dict.fromkeys(PEERS, str(error)))
        return {}
    return {name: (loop_script.command(how, steps, python), 2, CPU) for name, how in PEERS.items()}


def compared(contenders, rounds, block, say=print):
    """(rows, {name: seconds by round}) of contenders that must have equal losses.

    Raises:
        AssertionError: a contender did other work than the first.
    """
    found = turns.measured(contenders, rounds, block, warm=2, say=lambda text: say(f"  … {text}", flush=True))
    first, *others = found
    for other in others:
        same = found[first]["losses"] == found[other]["losses"]
        assert same, f"{other} must train as {first} does; their losses differ"
    seconds = {name: one["seconds"] for name, one in found.items()}
    return {name: measure.summary(spent) for name, spent in seconds.items()}, seconds


def run():
    datasets.ensure(loop_script.DATA)
    steps = turns.steps_needed(ROUNDS, BLOCK, warm=2)
    rows, seconds = compared({**contenders(steps), **peers(steps)}, ROUNDS, BLOCK)
    ratios = {f"{KIT} / {name}": in_turn.ratio(seconds[KIT], spent) for name, spent in seconds.items() if name != KIT}
    ratios |= {
        f"{name} / {BY_HAND}": in_turn.ratio(seconds[name], seconds[BY_HAND]) for name in PEERS if name in seconds
    }
    return rows, ratios


def reasons(rows, ratios):
    told = {}
    for name, (_, goal) in TARGETS.items():
        if ratios[name]["median"] > goal:
            other = rows[BY_HAND if name == COST else SAME_MALLOC]["median"]
            told[name] = (
                f"{1e3 * (rows[KIT]['median'] - other):+.2f} ms on steps of {1e3 * other:.1f} ms; the middle half of "
                f"{ratios[name]['n']} rounds has {ratios[name]['q1']:.3f} to {ratios[name]['q3']:.3f}"
            )
    return told


def notes(rows, ratios):
    said = [
        f"Losses of all {(ROUNDS + 2) * BLOCK} steps and both ranks are equal in all rows.",
        "A rank of the kit keeps the memory that it frees (helpers/memory.py), as a script by hand does not; "
        f"“{SAME_MALLOC}” is that script with glibc told the same from outside, so that row shows the loop alone.",
    ]
    said += [f"{', '.join(PINS)} ran with this environment's torch."] if not _why_absent else []
    return said + [f"{name} is left out: {why}" for name, why in _why_absent.items()]

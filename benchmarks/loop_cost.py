"""What the loop around a training step costs: the kit's, a script by hand under torchrun, Fabric, accelerate.

Two ranks of one CPU thread train ResNet-8 on the same batches in the same order; the runs take turns, and their
losses must be equal, number by number, or there is no result. Everything is started anew several times.

What the loop itself costs is less than two runs of one script differ by. So it is also taken from steps of very few
images, where it is a larger part: what it adds to those it adds to all.
"""

from helpers import measure
from helpers.data import sets

from . import environments, turns
from .cases import loop

UNIT = "s a step"
KIT, BY_HAND = "the kit's loop", "by hand, torchrun"
PEERS = {"Lightning Fabric": "fabric", "accelerate": "accelerate"}
PINS = ("lightning-fabric==2.6.6", "accelerate==1.15.0")
COST = f"{KIT} / {BY_HAND}"
OWN, FEW = "what the kit's loop adds, from steps of few images / a step", 2
TARGETS = {COST: ("<=", 1.01), OWN: ("<=", 0.01)}
AGAIN, NOISE = f"{BY_HAND}, once more", f"{BY_HAND}, once more / {BY_HAND}"
CASTS, ROUNDS, BLOCK, FEW_BLOCK = 5, 4, 8, 60
CPU = {"HELPERS_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": ""}
_why_absent = {}


def contenders(steps, ranks=2, batch=None):
    """For turns.measured: the kit, and the script by hand."""
    batch = batch or loop.LOCAL_BATCH
    kit = loop.kit(
        model=loop.MODEL,
        data=loop.DATA,
        strategy="ddp",
        nproc_per_node=ranks,
        threads=1,
        steps=steps,
        local_batch=batch,
        evaluate=False,
        device="cpu",
        **loop.SGD,
    )
    script = loop.script("plain", steps, ranks=ranks, batch=batch)
    return {KIT: (kit, ranks, CPU), BY_HAND: (script, ranks, CPU)}


def peers(steps):
    """The other libraries' loops, in an environment of their own; none where it cannot be made."""
    try:
        python = environments.python("loops", PINS)
    except environments.NoEnvironment as error:
        _why_absent.update(dict.fromkeys(PEERS, str(error)))
        return {}
    return {name: (loop.script(how, steps, python), 2, CPU) for name, how in PEERS.items()}


def compared(contenders, rounds, block, say=print):
    """{name: seconds by round} of contenders that must have equal losses.

    Raises:
        AssertionError: a contender did other work than the first.
    """
    found = turns.measured(contenders, rounds, block, warm=2, say=lambda text: say(f"  … {text}", flush=True))
    first, *others = found
    for other in others:
        same = found[first]["losses"] == found[other]["losses"]
        assert same, f"{other} must train as {first} does; their losses differ"
    return {name: one["seconds"] for name, one in found.items()}


def run():
    sets.ensure(loop.DATA)
    steps = turns.steps_needed(ROUNDS, BLOCK, warm=2)
    parties = {**contenders(steps), **peers(steps)}
    parties[AGAIN] = parties[BY_HAND]
    few = contenders(turns.steps_needed(ROUNDS, FEW_BLOCK, warm=2), batch=FEW)
    few = {few_images(name): few[name] for name in (KIT, BY_HAND)}

    def play(number):
        print(f"  … {number + 1} of {CASTS}", flush=True)
        return {**compared(parties, ROUNDS, BLOCK), **compared(few, ROUNDS, FEW_BLOCK)}

    seconds = turns.medians(play, CASTS)
    ratios = {
        f"{KIT} / {name}": turns.ratio(seconds[KIT], seconds[name]) for name in parties if name not in (KIT, AGAIN)
    }
    ratios |= {f"{name} / {BY_HAND}": turns.ratio(seconds[name], seconds[BY_HAND]) for name in PEERS if name in seconds}
    ratios[NOISE] = turns.ratio(seconds[AGAIN], seconds[BY_HAND])
    ratios[OWN] = own_cost(seconds)
    return {name: measure.summary(spent) for name, spent in seconds.items()}, ratios


def few_images(name):
    """The name of a contender's row of steps of FEW images."""
    return f"{name}, {FEW} images"


def own_cost(seconds):
    """The share of a whole step that the kit's loop adds to the script's, from {name: seconds, cast by cast}."""
    added = [a - b for a, b in zip(seconds[few_images(KIT)], seconds[few_images(BY_HAND)], strict=True)]
    return turns.ratio(added, seconds[BY_HAND])


def reasons(rows, ratios):
    told = {}
    if ratios[COST]["median"] > TARGETS[COST][1]:
        step = rows[BY_HAND]["median"]
        told[COST] = (
            f"{1e3 * (rows[KIT]['median'] - step):+.2f} ms on steps of {1e3 * step:.1f} ms; the 95% interval "
            f"of {ratios[COST]['n']} starts is {ratios[COST]['low']:.3f} to {ratios[COST]['high']:.3f}, that of one "
            f"script beside itself {ratios[NOISE]['low']:.3f} to {ratios[NOISE]['high']:.3f}"
        )
    if ratios[OWN]["median"] > TARGETS[OWN][1]:
        few = (1e3 * rows[few_images(name)]["median"] for name in (KIT, BY_HAND))
        told[OWN] = "a step of {} images takes {:.2f} ms in the kit's loop, {:.2f} ms by hand".format(FEW, *few)
    return told


def notes(rows, ratios):
    said = [
        f"Losses of all {(ROUNDS + 2) * BLOCK} steps and both ranks are equal in all rows, each time of {CASTS}.",
    ]
    few = [1e3 * rows[few_images(name)]["median"] for name in (KIT, BY_HAND) if few_images(name) in rows]
    if few:
        said.append(f"A step of {FEW} images takes {few[0]:.2f} ms in the kit, {few[1]:.2f} ms by hand.")
    if NOISE in ratios:
        low, high = ratios[NOISE]["low"], ratios[NOISE]["high"]
        said.append(f"The same script started twice differs, too: {NOISE} {low:.3f} to {high:.3f}.")
    said += [f"{', '.join(PINS)} ran with this environment's torch."] if not _why_absent else []
    return said + [f"{name} is left out: {why}" for name, why in _why_absent.items()]

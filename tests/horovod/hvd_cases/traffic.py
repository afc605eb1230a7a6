"""Traffic that is drawn at random: what a rank does with a plan, and many tensors in flight.

A plan is a list of acts (see `forms`) that wait for nobody, with an order of submission for every rank.
"""

import random

import torch

import platforms.horovod.torch as hvd

from .forms import FORMS, LAYOUTS, acts, begin
from .lab import healthy

ASYNC = [form for form in FORMS if "async" in form]
DTYPES = ["uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


def play_drawn(count, seed):
    """Play `count` plans, one after the other; every rank draws the same ones from the seed."""
    hvd.init()
    draw = random.Random(seed)
    for number in range(count):
        plan = drawn(draw, hvd.size())
        try:
            play(plan)
        except BaseException as error:
            raise AssertionError(f"plan {number} of seed {seed}, rank {hvd.rank()}: {error}\n{plan}") from error
    hvd.shutdown()


def drawn(draw, size):
    """A plan for `size` ranks."""
    ranks = list(range(size))
    sets = sorted({tuple(sorted(draw.sample(ranks, draw.randint(1, size - 1)))) for _ in range(draw.randint(0, 3))})
    acts = [_act(draw, number, [ranks, *map(list, sets)]) for number in range(draw.randint(1, 16))]
    orders = [draw.sample(range(len(acts)), len(acts)) for _ in ranks]
    return {"sets": sets, "acts": acts, "orders": orders, "turns": draw.choice([1, 2, 3, 5]), "seed": draw.random()}


def _act(draw, number, groups):
    form = draw.choice(ASYNC)
    return {
        "form": form,
        "name": f"{number}",
        "dtype": draw.choice(DTYPES),
        "shape": (draw.randint(0, 7), *draw.choice([(), (0,), (3,), (2, 2), (300,)])),
        "op": draw.choice(["average", "sum"] if "reducescatter" in form else ["average", "sum", "min", "max"]),
        "scales": (1.0, 1.0),
        "layout": draw.choice([*LAYOUTS]),
        "members": draw.choice(groups),
        "salt": draw.randint(0, 1000),
    }


def play(plan):
    """Do the collectives of a plan, as often as it says: all submitted in this rank's order, then all compared."""
    rank = hvd.rank()
    sets = {tuple(range(hvd.size())): hvd.global_process_set}
    for members in plan["sets"]:
        sets[tuple(members)] = hvd.add_process_set(members)
    for turn in range(plan["turns"]):
        order = plan["orders"][(rank + turn) % len(plan["orders"])]
        mine = [{**plan["acts"][number], "salt": plan["acts"][number]["salt"] + 10 * turn} for number in order]
        checks = [begin(act, sets[tuple(act["members"])]) for act in mine if rank in act["members"]]
        random.Random(f"{plan['seed']} {rank}").shuffle(checks)
        for check in checks:
            check()
    for members in plan["sets"]:
        assert hvd.remove_process_set(sets[tuple(members)])


def many(count):
    """`count` named tensors of all kinds in flight at once, submitted in another order by every rank."""
    hvd.init()
    size = hvd.size()
    dtypes = (torch.float32, torch.float64, torch.int64, torch.float16, torch.uint8)
    every = list(acts(list(range(size)), random.Random(size).choices(ASYNC, k=count // len(dtypes)), dtypes))
    orders = [random.Random(r).sample(range(len(every)), len(every)) for r in range(size)]
    play({"sets": [], "acts": every, "orders": orders, "turns": 3, "seed": 7})
    healthy()
    hvd.shutdown()

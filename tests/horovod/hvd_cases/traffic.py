"""Traffic that is drawn at random: what a rank does with a plan.

A plan is a list of acts (see `forms`) that wait for nobody, with an order of submission for every rank: the same for
the acts of one process set, any for those of different ones. In a crooked plan it is any.
"""

import random

import platforms.horovod.torch as hvd
from platforms.horovod.core import CollectiveError

from .forms import FORMS, LAYOUTS, begin
from .lab import healthy

ASYNC = [form for form in FORMS if "async" in form]
DTYPES = ["uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


def play_drawn(count, seed):
    """Play `count` plans, one after the other; every rank draws the same ones from the seed. Returns the refusals."""
    hvd.init()
    draw, refused = random.Random(seed), 0
    for number in range(count):
        plan = drawn(draw, hvd.size(), crooked=number % 4 == 3)
        try:
            refused += play(plan)
        except BaseException as error:
            raise AssertionError(f"plan {number} of seed {seed}, rank {hvd.rank()}: {error}\n{plan}") from error
    hvd.shutdown()
    return refused


def drawn(draw, size, crooked=False):
    """A plan for `size` ranks."""
    ranks = list(range(size))
    sets = sorted({tuple(sorted(draw.sample(ranks, draw.randint(1, size - 1)))) for _ in range(draw.randint(0, 3))})
    acts = [_act(draw, number, [ranks, *map(list, sets)]) for number in range(draw.randint(1, 16))]
    orders = [draw.sample(range(len(acts)), len(acts)) for _ in ranks]
    orders = orders if crooked else [_in_order(acts, order) for order in orders]
    turns = 1 if crooked else draw.choice([1, 2, 3, 5])
    return {"sets": sets, "acts": acts, "orders": orders, "turns": turns, "seed": draw.random(), "crooked": crooked}


def _in_order(acts, order):
    """`order` with the acts of each process set in the order of the plan."""
    of_sets = {}
    for number, act in enumerate(acts):
        of_sets.setdefault(tuple(act["members"]), []).append(number)
    of_sets = {members: iter(numbers) for members, numbers in of_sets.items()}
    return [next(of_sets[tuple(acts[number]["members"])]) for number in order]


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
    """Do the collectives of a plan, as often as it says: all submitted in this rank's order, then all compared.

    Returns how many were refused; in a crooked plan each is right or is refused.
    """
    rank, refused = hvd.rank(), 0
    sets = {tuple(range(hvd.size())): hvd.global_process_set}
    for members in plan["sets"]:
        sets[tuple(members)] = hvd.add_process_set(members)
    for turn in range(plan["turns"]):
        order = plan["orders"][(rank + turn) % len(plan["orders"])]
        mine = [{**plan["acts"][number], "salt": plan["acts"][number]["salt"] + 10 * turn} for number in order]
        checks = [begin(act, sets[tuple(act["members"])]) for act in mine if rank in act["members"]]
        random.Random(f"{plan['seed']} {rank}").shuffle(checks)
        for check in checks:
            try:
                check()
            except CollectiveError:
                refused += 1
                if not plan.get("crooked"):
                    raise
    healthy()
    for members in plan["sets"]:
        assert hvd.remove_process_set(sets[tuple(members)])
    return refused

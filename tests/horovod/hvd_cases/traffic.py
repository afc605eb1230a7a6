"""Traffic that is drawn at random: what a rank does with a plan, and many tensors in flight.

A plan is a list of acts (see `forms`) that wait for nobody, with an order of submission for every rank.
"""

import random
from multiprocessing.connection import Client

import torch

import platforms.horovod.torch as hvd

from .forms import FORMS, acts, begin
from .lab import healthy

ASYNC = [form for form in FORMS if "async" in form]


def serve(address, key):
    """Run the plans that come from the test's process, one after the other, and tell how each went."""
    hvd.init()
    with Client(address, authkey=key) as line:
        line.send(hvd.rank())
        while (plan := line.recv()) is not None:
            try:
                play(plan)
                line.send(None)
            except BaseException as error:
                line.send(f"rank {hvd.rank()}: {type(error).__name__}: {error}")
                raise
    hvd.shutdown()


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
        random.Random(plan["seed"] + rank).shuffle(checks)
        for check in checks:
            check()
    for members in plan["sets"]:
        assert hvd.remove_process_set(sets[tuple(members)])


def many(count):
    """`count` named tensors of all kinds in flight at once, submitted in another order by every rank."""
    hvd.init()
    size = hvd.size()
    dtypes = (torch.float32, torch.float64, torch.int64, torch.float16, torch.uint8)
    drawn = list(acts(list(range(size)), random.Random(size).choices(ASYNC, k=count // len(dtypes)), dtypes))
    orders = [random.Random(r).sample(range(len(drawn)), len(drawn)) for r in range(size)]
    play({"sets": [], "acts": drawn, "orders": orders, "turns": 3, "seed": 7})
    healthy()
    hvd.shutdown()

"""Traffic that is drawn at random: what a rank does with a plan, and many tensors in flight.

A plan is a list of collectives, plain dictionaries, with an order of submission for every rank.
"""

import random
from multiprocessing.connection import Client

import numpy as np
import torch

import helpers.hvd.torch as hvd

from .lab import everyone, reduced, same, values, wide
from .move import block

OPS = {"average": hvd.Average, "sum": hvd.Sum, "min": hvd.Min, "max": hvd.Max}


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
    """Do the collectives of a plan: all submitted in this rank's order, then all compared with the oracle."""
    size, rank = hvd.size(), hvd.rank()
    sets = {tuple(range(size)): hvd.global_process_set}
    for members in plan["sets"]:
        sets[tuple(members)] = hvd.add_process_set(members)
    waiting = []
    for number in plan["orders"][rank]:
        act = plan["acts"][number]
        if rank in act["members"]:
            waiting.append((act, *submit(act, rank, sets[tuple(act["members"])])))
    random.Random(plan["seed"] + rank).shuffle(waiting)
    for act, handle, want in waiting:
        results = hvd.synchronize(handle)
        results = results if isinstance(results, list | tuple) else [results]
        for got, wanted in zip(results, want, strict=act["kind"] != "alltoall"):
            same(got, wanted, getattr(torch, act["dtype"]), what=str(act))
    for members in plan["sets"]:
        assert hvd.remove_process_set(sets[tuple(members)])


def submit(act, rank, group):
    """Start one collective; returns its handle and what each of its results has to be."""
    members, dtype, name = act["members"], getattr(torch, act["dtype"]), act["name"]
    place, kind = members.index(rank), act["kind"]
    op = OPS.get(act["op"])
    low = 0 if act["op"] == "average" else -3
    tail, salt = tuple(act["tail"]), act["salt"]
    if kind in ("allreduce", "allreduce_", "grouped", "reducescatter"):
        inputs = [values(r, (act["rows"], *tail), dtype, salt, low=low) for r in members]
        mine, want = inputs[place], reduced(inputs, op)
        if kind == "allreduce":
            return hvd.allreduce_async(mine, name=name, op=op, process_set=group), [want]
        if kind == "allreduce_":
            return hvd.allreduce_async_(mine, name=name, op=op, process_set=group), [want]
        if kind == "grouped":
            return hvd.grouped_allreduce_async([mine, mine[:0]], name=name, op=op, process_set=group), [want, want[:0]]
        op = op if op in (hvd.Average, hvd.Sum) else hvd.Sum
        want = reduced(inputs, op)[block(len(members), place, act["rows"])]
        return hvd.reducescatter_async(mine, name=name, op=op, process_set=group), [want]
    if kind == "broadcast":
        root = members[salt % len(members)]
        sent = values(root, (act["rows"], *tail), dtype, salt)
        mine = values(rank, (act["rows"], *tail), dtype, salt)
        return hvd.broadcast_async(mine, root, name=name, process_set=group), [wide(sent)]
    rows = [(act["rows"] + salt * r) % 5 for r in range(len(members))]
    if kind == "allgather":
        inputs = [values(r, (n, *tail), dtype, salt) for r, n in zip(members, rows, strict=True)]
        want = np.concatenate([wide(t) for t in inputs])
        return hvd.allgather_async(inputs[place], name=name, process_set=group), [want]
    assert kind == "alltoall"
    inputs = [values(r, (n * len(members), *tail), dtype, salt) for r, n in zip(members, rows, strict=True)]
    want = np.concatenate([wide(t[n * place : n * (place + 1)]) for t, n in zip(inputs, rows, strict=True)])
    splits = [rows[place]] * len(members)
    return hvd.alltoall_async(inputs[place], splits=splits, name=name, process_set=group), [want]


def many(count):
    """`count` named tensors of all kinds in flight at once, submitted in another order by every rank."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    dtypes = (torch.float32, torch.float64, torch.int64, torch.float16, torch.uint8)
    kinds = ("allreduce", "allreduce_", "allgather", "broadcast", "alltoall", "reducescatter", "grouped")
    draw = random.Random(size)
    acts = [
        {
            "kind": draw.choice(kinds), "members": list(range(size)), "name": f"tensor {n}", "salt": n,
            "dtype": str(draw.choice(dtypes))[6:], "op": draw.choice(["sum", "max", "average"]),
            "rows": draw.randrange(9), "tail": draw.choice([(), (3,)]),
        }
        for n in range(count)
    ]  # fmt: skip
    orders = [random.Random(r).sample(range(count), count) for r in range(size)]
    play({"sets": [], "acts": acts, "orders": orders, "seed": 7})
    inputs = everyone((3,), torch.float32)
    same(hvd.allreduce(inputs[rank], op=hvd.Sum), reduced(inputs, hvd.Sum))
    hvd.shutdown()

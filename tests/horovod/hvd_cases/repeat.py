"""Cases of steps that repeat the collectives of the step before: requests with numbers, and what makes them unusual."""

import os
import random

import numpy as np
import torch

import platforms.horovod.torch as hvd
from platforms.horovod.core import HorovodInternalError, job

from .lab import case, healthy, reduced, refused, same, values

CAPACITY = int(os.environ.get("HOROVOD_CACHE_CAPACITY", 1024))


def step(names, salt, shape=(3,), dtype=torch.float32, op=hvd.Sum, group=hvd.global_process_set, order=None):
    """Reduce a tensor under each name, in this rank's order; returns the messages that it sent for that."""
    inputs = {name: [values(r, shape, dtype, salt + n) for r in group.ranks] for n, name in enumerate(names)}
    engine, sent = job.current().engine, []
    send, engine.send = engine.send, lambda message: (sent.append(message), send(message))
    try:
        handles = {
            name: hvd.allreduce_async(inputs[name][group.rank()], name=name, op=op, process_set=group)
            for name in order or names
        }
        results = {name: hvd.synchronize(handle) for name, handle in handles.items()}
    finally:
        engine.send = send
    for name in names:
        same(results[name], reduced(inputs[name], op), dtype, what=f"{name}, salt {salt}")
    return sent


def asked(messages):
    """The names of the requests that were sent in full."""
    return {request["name"] for message in messages for request in message.get("ask", ())}


@case("repeat")
def only_bits_are_sent_of_what_was_asked_before():
    names = [f"steady {n}" for n in range(9)]
    draw = random.Random(hvd.rank())
    for salt in range(5):
        sent = step(names, 10 * salt, order=draw.sample(names, len(names)))
        new = min(len(names), max(0, len(names) - CAPACITY)) if salt > 1 else len(names)
        assert len(asked(sent)) == new, f"step {salt}: {sent}"
    grouped = [values(hvd.rank(), (2,), torch.float64, n) for n in range(3)]
    for _ in range(4):
        for n, each in enumerate(hvd.grouped_allreduce(grouped, name="group", op=hvd.Max)):
            same(each, reduced([values(r, (2,), torch.float64, n) for r in range(hvd.size())], hvd.Max))


@case("repeat")
def other_kinds_in_every_step():
    size, rank = hvd.size(), hvd.rank()
    for salt in range(5):
        everybodys = [values(r, (size, 2), torch.int64, salt) for r in range(size)]
        mine = everybodys[rank]
        gathered = hvd.allgather_async(mine, name="gather")
        uneven = hvd.allgather_async(mine[: 1 + (rank + salt) % size], name="uneven")
        copied = hvd.broadcast_async(mine, size - 1, name="copy")
        swapped = hvd.alltoall_async(mine, name="swap")
        shared = hvd.reducescatter_async(mine, name="share", op=hvd.Sum)
        same(hvd.synchronize(gathered), torch.cat(everybodys))
        parts = [each[: 1 + (r + salt) % size] for r, each in enumerate(everybodys)]
        same(hvd.synchronize(uneven), torch.cat(parts))
        same(hvd.synchronize(copied), everybodys[-1])
        same(hvd.synchronize(swapped)[0], torch.stack([each[rank] for each in everybodys]))
        same(hvd.synchronize(shared), sum(everybodys)[rank : rank + 1])


@case("repeat")
def shape_dtype_and_operation_change_and_come_back():
    looks = [{}, {"shape": (2, 2)}, {"dtype": torch.int64}, {"op": hvd.Max}, {"shape": ()}, {}]
    for turn, look in enumerate(looks):
        for salt in range(3):
            step(["changing", "constant"], 10 * turn + salt, **look)
    for turn in range(12):  # in every step another one
        step(["changing"], turn, **looks[turn % len(looks)])


@case("repeat")
def places_in_the_buffer_serve_again():
    """Two dtypes in a group; in some steps a large tensor with gaps; in between what needs a larger buffer."""
    looks = [((30, 40), torch.float32), ((7,), torch.float64), ((1100, 1000), torch.float32), ((5,), torch.float32)]
    for turn in range(8):
        inputs = [[values(r, *look, turn) for look in looks] for r in range(hvd.size())]
        mine = [each.clone() for each in inputs[hvd.rank()]]
        if turn % 2:
            mine[2] = mine[2].t().contiguous().t()
        hvd.grouped_allreduce_(mine, name="laid", op=hvd.Sum)
        for got, *everybodys in zip(mine, *inputs, strict=True):
            same(got, reduced(everybodys, hvd.Sum), what=f"turn {turn}")
        if turn == 5:
            step(["larger", "larger still"], turn, shape=(1000, 1000))


@case("repeat", least=2)
def one_rank_changes_what_the_others_repeat():
    for odd in {0, hvd.size() - 1}:
        name = f"torn by {odd}"
        for salt in range(3):
            step([name], salt)
        handle = hvd.allreduce_async(torch.ones(4 if hvd.rank() == odd else 3), name=name, op=hvd.Sum)
        with refused(name, "shapes differ", odd, error=HorovodInternalError):
            hvd.synchronize(handle)
        for salt in range(2):
            step([name], salt)
        with refused(name, error=HorovodInternalError):  # refused on one rank only
            hvd.allreduce(torch.ones(3).to("meta") if hvd.rank() == odd else torch.ones(3), name=name, op=hvd.Sum)
        healthy("the odd rank got its error at once, and must not use the name before the others got theirs")
        for salt in range(3):
            step([name], salt)
        healthy()


@case("repeat", least=2)
def a_rank_comes_later_with_one_tensor():
    names = [f"late {n}" for n in range(4)]
    for salt in range(3):
        step(names, salt)
    inputs = [torch.full((3,), r + 1.0) for r in range(hvd.size())]
    last = hvd.size() - 1
    for round_of in range(4):
        if hvd.rank() != last:
            early = hvd.allreduce_async(inputs[hvd.rank()], name=names[2], op=hvd.Sum)
            step([names[0], names[3]], round_of)  # these do not wait for it
        else:
            step([names[0], names[3]], round_of)
            early = hvd.allreduce_async(inputs[last], name=names[2], op=hvd.Sum)
        same(hvd.synchronize(early), reduced(inputs, hvd.Sum))


@case("repeat", least=2)
def a_rank_joins_while_the_others_repeat():
    size, rank = hvd.size(), hvd.rank()
    inputs = [torch.full((3,), r + 1.0) for r in range(size)]
    for _ in range(3):
        for salt in range(3):
            step(["before a join"], salt)
        for _ in range(2 if rank else 0):
            same(hvd.allreduce(inputs[rank], name="before a join", op=hvd.Sum), reduced(inputs[1:], hvd.Sum))
        hvd.join()
    healthy()


@case("repeat", least=2)
def process_sets_have_numbers_of_their_own():
    size = hvd.size()
    for turn in range(3):
        group = hvd.add_process_set([0, size - 1] if size > 2 else [1])
        for salt in range(4):
            if group.included():
                sent = step(["in a set", "too"], salt + 10 * turn, group=group)
                assert not CAPACITY or salt < 2 or CAPACITY < 2 or not asked(sent), sent
            step(["in a set"], salt)
        hvd.remove_process_set(group)


@case("repeat")
def more_names_than_numbers():
    for salt in range(3):
        step([f"one of many {n}" for n in range(40)], salt)
        step([f"epoch {salt}, {n}" for n in range(5)], salt)


@case("repeat", least=2)
def the_caller_writes_to_its_own_arguments_between_two_steps():
    size, rank = hvd.size(), hvd.rank()
    splits = [[0] * size, torch.zeros(size, dtype=torch.int64), np.zeros(size, dtype=np.int32)]  # the same objects
    factor, group = torch.tensor(0.0), [torch.ones(2), torch.ones(3)]
    for turn in range(4):
        factor.fill_(turn + 1)
        group[turn % 2] = torch.ones(turn + 1)
        plan = [[(sender + receiver + turn) % 3 for receiver in range(size)] for sender in range(size)]
        rows = [torch.full((sum(counts),), float(sender)) for sender, counts in enumerate(plan)]
        want = torch.cat([torch.full((counts[rank],), float(sender)) for sender, counts in enumerate(plan)])
        for number, each in enumerate(splits):
            for receiver in range(size):
                each[receiver] = plan[rank][receiver]
            for _ in range(3):  # so that the request of this turn has a number when the next one differs
                handle = hvd.alltoall_async(rows[rank], each, name=f"swap by {number}")
                each[0] += 1  # while it is under way, too
                same(hvd.synchronize(handle)[0], want, what=f"turn {turn}, {type(each).__name__}")
                each[0] -= 1
                scaled = hvd.allreduce(torch.ones(2), name="scaled", op=hvd.Sum, prescale_factor=factor)
                same(scaled, [size * (turn + 1.0)] * 2, what=f"turn {turn}")
                for got, given in zip(hvd.grouped_allreduce(group, name="group", op=hvd.Sum), group, strict=True):
                    same(got, size * given, what=f"turn {turn}")


@case("repeat", least=2)
def splits_that_are_no_whole_numbers_are_refused_every_time():
    size = hvd.size()
    for _ in range(3):
        hvd.alltoall(torch.ones(size), [1] * size, name="whole")
    for wrong in ([1.0] * size, torch.ones(size), [np.ones(2, dtype=np.int64)] * size):
        with refused("whole", "whole numbers is needed"):
            hvd.alltoall(torch.ones(size), wrong, name="whole")
    healthy()

"""Cases of collectives that move rows, beyond the table of `forms`: defaults, refusals, arguments that change."""

import numpy as np
import torch

import platforms.horovod.torch as hvd

from .forms import exchanged
from .lab import case, everyone, healthy, refused, same, values


@case("move")
def alltoall_in_equal_parts():
    size, rank = hvd.size(), hvd.rank()
    for rows in (0, 1, 3):
        inputs = everyone((rows * size, 2), torch.int64, rows)
        sent = np.full((size, size), rows)
        got = hvd.alltoall(inputs[rank])
        assert isinstance(got, torch.Tensor), "received_splits come only where splits were given"
        same(got, exchanged(inputs, sent, rank), torch.int64)
    sent = np.repeat(np.arange(size)[:, None], size, 1)
    inputs = [values(r, (r * size,), torch.float32) for r in range(size)]
    got, received = hvd.synchronize(hvd.alltoall_async(inputs[rank], name="equal"))
    same(got, exchanged(inputs, sent, rank), torch.float32)
    assert received.tolist() == list(range(size))


@case("move")
def bad_splits_are_refused_by_everyone():
    size = hvd.size()
    bad = [
        (size - 1, torch.ones(size, dtype=torch.int32)),
        (size, torch.ones(size)),
        (size, [1] * (size + 1)),
        (size, torch.ones(1, size, dtype=torch.int32)),
        (size, [-1] + [1] * (size - 1)),
    ]
    for rows, splits in bad:
        with refused(error=(ValueError, RuntimeError, TypeError)):
            hvd.alltoall(torch.ones(rows), splits=splits)
        healthy(f"after {rows} rows in {splits}")
    if size > 1:
        with refused():
            hvd.alltoall(torch.ones(size + 1))
        healthy()


@case("move", least=2)
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

"""Cases of join: ranks with unequal amounts of data."""

import numpy as np
import torch

import platforms.horovod.torch as hvd

from .lab import alike, case, healthy, reduced, refused, same, values


@case("join")
def uneven_data():
    """Rank r has 2 (r + 1) steps: who is done gives zeros, the average still divides by all."""
    size, rank = hvd.size(), hvd.rank()
    for turn, dtype in enumerate((torch.float32, torch.float64, torch.float16, torch.float32)):
        for step in range(2 * (rank + 1)):
            there = [r for r in range(size) if step < 2 * (r + 1)]
            inputs = [values(r, (5,), dtype, step) if r in there else torch.zeros(5, dtype=dtype) for r in range(size)]
            handles = [hvd.allreduce_async(inputs[rank], name=f"{n}", op=hvd.Average) for n in range(2)]
            for handle in handles:
                same(hvd.synchronize(handle), reduced(inputs, hvd.Average), dtype, what=f"step {step}")
            group = hvd.grouped_allreduce([inputs[rank], inputs[rank]], op=hvd.Sum, name="group")
            same(group[1], reduced(inputs, hvd.Sum), dtype)
        assert hvd.join() == size - 1, f"turn {turn}: the last to join was rank {size - 1}"
        healthy()
    whole = torch.full((3,), 6 * size, dtype=torch.int64)
    if rank != 0:  # without a name: the ranks count alike again after a join
        same(hvd.allreduce(whole, op=hvd.Average), np.full(3, 6 * (size - 1)))
    hvd.join()
    same(hvd.allreduce(torch.ones(3), op=hvd.Sum), [float(size)] * 3)
    last = hvd.join(device=-1)  # all at once
    assert isinstance(last, int) and last in range(size)
    alike(torch.tensor([last]))


@case("join", least=2)
def other_collectives_are_refused_while_a_rank_has_joined():
    rank, size = hvd.rank(), hvd.size()
    calls = {
        "gather": lambda: hvd.allgather(torch.ones(2), name="gather"),
        "scatter": lambda: hvd.reducescatter(torch.ones(size), name="scatter"),
        "swap": lambda: hvd.alltoall(torch.ones(size), name="swap"),
        "copy": lambda: hvd.broadcast(torch.ones(2), 1, name="copy"),
    }
    for op in (hvd.Min, hvd.Max, hvd.Product):  # zeros of the joined rank would not be neutral
        calls[op.name] = lambda op=op: hvd.allreduce(torch.ones(2), name=op.name, op=op)
    for name, call in calls.items():
        if rank > 0:
            with refused(name, "oin", 0):
                call()
        hvd.join()
        healthy()


@case("join", least=2)
def submitted_before_join_and_synchronized_after():
    rank, size = hvd.rank(), hvd.size()
    handles = [hvd.allreduce_async(torch.full((2,), rank + 1.0), name=f"before {n}", op=hvd.Sum) for n in range(10)]
    if rank == 0:
        last = hvd.join()
        assert last != 0
    else:
        same(hvd.allreduce(torch.ones(1), name="after", op=hvd.Sum), [size - 1.0])
        hvd.join()
    for handle in handles:
        same(hvd.synchronize(handle), [size * (size + 1) / 2] * 2)

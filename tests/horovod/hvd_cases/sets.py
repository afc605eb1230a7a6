"""Cases of process sets: static, dynamic, overlapping, disjoint, and the ranks outside."""

import numpy as np
import torch

import platforms.horovod.torch as hvd

from .forms import acts, begin
from .lab import ERRORS, alike, case, healthy, reduced, refused, same, values


@case("sets")
def the_global_set_and_sets_that_make_no_sense():
    everybody, size = hvd.global_process_set, hvd.size()
    assert everybody.process_set_id == 0 and list(everybody.ranks) == list(range(size))
    assert (everybody.rank(), everybody.size(), everybody.included()) == (hvd.rank(), size, True)
    assert hvd.remove_process_set(everybody) is False
    same(hvd.allreduce(torch.ones(2), process_set=everybody), [1.0, 1.0])
    for bad in ([size], [-1], [0, size + 3], ["0"], [0.5], 3, "all", None, []):
        with refused(error=(*ERRORS, TypeError)):
            hvd.add_process_set(bad)
    healthy()


@case("sets")
def sets_are_added_and_removed():
    size, rank = hvd.size(), hvd.rank()
    first = hvd.ProcessSet([0])
    assert first.process_set_id is None and first.rank() is None and first.size() is None
    assert len({first, hvd.ProcessSet([0])}) == 2, "sets can be kept in dictionaries, each is itself"
    if size == 1:  # the same ranks as the global set
        with refused(error=ValueError):
            hvd.add_process_set(first)
        return
    assert hvd.add_process_set(first) is first
    assert (first.included(), first.size(), list(first.ranks)) == (rank == 0, 1, [0])
    if rank == 0:
        assert first.rank() == 0
    last = hvd.add_process_set(range(size - 1, 0, -1))
    assert list(last.ranks) == list(range(1, size)) and last.included() == (rank > 0)
    if rank > 0:
        assert last.rank() == rank - 1 and last.size() == size - 1
    ids = torch.tensor([first.process_set_id, last.process_set_id])
    alike(ids, "ids of process sets")
    assert len({0, first.process_set_id, last.process_set_id}) == 3
    with refused(error=ValueError):
        hvd.add_process_set([0])
    with refused(error=ValueError):
        hvd.add_process_set(hvd.ProcessSet(list(range(size))))
    healthy("after refusals")
    assert hvd.remove_process_set(first) is True and first.process_set_id is None
    with refused(error=ERRORS):
        hvd.allreduce(torch.ones(1), process_set=first)
    again = hvd.add_process_set([0])
    if rank == 0:
        same(hvd.allreduce(torch.ones(1), process_set=again, op=hvd.Sum), [1.0])
    assert hvd.remove_process_set(again) and hvd.remove_process_set(last)
    healthy()


@case("sets", least=2)
def every_collective_in_overlapping_sets():
    size, rank = hvd.size(), hvd.rank()
    choices = [[0, 1], [size - 1], list(range(1, size)), [0, size - 1], list(range(0, size, 2))]
    groups = [(hvd.add_process_set(list(c)), list(c)) for c in sorted({tuple(c) for c in choices if len(c) < size})]
    for group, members in groups:
        if rank in members:
            for check in [begin(act, group) for act in acts(members, dtypes=[torch.float32])]:
                check()
            others_in_a_set(group, members)
    for group, _ in groups:
        assert hvd.remove_process_set(group)


def others_in_a_set(group, members):
    """What is no form of `forms`: barriers, sparse tensors, gradients."""
    size = len(members)
    hvd.barrier(process_set=group)
    half = torch.eye(3)[:, :2]
    finish = hvd.sparse_allreduce_async(half.to_sparse(1), name="s", op=hvd.Average, process_set=group)
    same(finish().to_dense(), half)
    leaf = torch.ones(2, requires_grad=True)
    hvd.allreduce(leaf, op=hvd.Sum, process_set=group).sum().backward()
    hvd.allgather(leaf, process_set=group).sum().backward()
    hvd.broadcast(leaf, members[-1], process_set=group).sum().backward()
    hvd.reducescatter(leaf, op=hvd.Average, process_set=group).sum().backward()
    same(leaf.grad, np.full(2, size + 2.0 + (hvd.rank() == members[-1])))


@case("sets", least=3)
def disjoint_sets_work_at_the_same_time_with_the_same_names():
    size, rank = hvd.size(), hvd.rank()
    low, high = hvd.add_process_set(range(2)), hvd.add_process_set(range(2, size))
    mine, members = (low, [0, 1]) if rank < 2 else (high, list(range(2, size)))
    for n in range(10):
        inputs = [values(r, (4 + rank // 2,), torch.float32, n) for r in members]  # the sets differ in shape
        handle = hvd.allreduce_async(inputs[members.index(rank)], name="gradient", op=hvd.Sum, process_set=mine)
        same(hvd.synchronize(handle), reduced(inputs, hvd.Sum))
    if rank < 2:  # one set works while the other does not
        for _ in range(5):
            hvd.allreduce(torch.ones(2), process_set=low)
        hvd.barrier(process_set=low)
    healthy()
    hvd.remove_process_set(low)
    hvd.remove_process_set(high)


@case("sets", least=2)
def ranks_outside_are_refused_and_nobody_waits():
    size, rank = hvd.size(), hvd.rank()
    group = hvd.add_process_set([0])
    if rank > 0:
        for call in (hvd.allreduce, hvd.allreduce_async_, hvd.allgather, hvd.alltoall):
            with refused(rank):
                call(torch.ones(1), name="not mine", process_set=group)
        with refused(rank):
            hvd.barrier(process_set=group)
        assert group.rank() in (-1, None)
    else:
        same(hvd.allreduce(torch.ones(1), name="not mine", process_set=group), [1.0])
    healthy()
    for root in (1, size, -1):
        if rank == 0:
            with refused():
                hvd.broadcast(torch.ones(1), root, process_set=group)
    healthy()
    hvd.remove_process_set(group)


@case("sets", least=2)
def sets_given_to_init():
    size, rank = hvd.size(), hvd.rank()
    hvd.shutdown()
    first, rest = hvd.ProcessSet([0]), hvd.ProcessSet(range(size - 1, 0, -1))
    hvd.init(process_sets=[first, rest])
    assert (first.process_set_id, rest.process_set_id) == (1, 2)
    mine = first if rank == 0 else rest
    assert mine.included() and mine.size() == (1 if rank == 0 else size - 1)
    same(hvd.allreduce(torch.ones(2), op=hvd.Sum, process_set=mine), [float(mine.size())] * 2)
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    group = hvd.add_process_set([0])
    if rank == 0:
        hvd.barrier(process_set=group)
    healthy()
    hvd.shutdown()
    hvd.init()
    with refused(error=ERRORS):
        hvd.allreduce(torch.ones(1), process_set=group)
    healthy()

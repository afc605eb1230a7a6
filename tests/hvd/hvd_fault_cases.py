"""Cases of collectives on which the ranks do not agree: an error on every rank, and the job goes on."""

import time

import torch
from hvd_lab import case, healthy, refused

import helpers.hvd.core as core
import helpers.hvd.torch as hvd


def disagreement(name, usual, other, *words):
    """One rank at a time calls `other` where the others call `usual`; all get an error that names tensor and rank."""
    for odd in {0, hvd.size() - 1}:
        call = other if hvd.rank() == odd else usual
        with refused(name, odd, *words, error=core.HorovodInternalError):
            call(name)
        healthy(f"after {name}, rank {odd} being odd")


@case("mismatch", least=2)
def shapes():
    disagreement(
        "width", lambda n: hvd.allreduce(torch.ones(4), name=n), lambda n: hvd.allreduce(torch.ones(5), name=n)
    )
    disagreement(
        "same count",
        lambda n: hvd.allreduce(torch.ones(2, 6), name=n),
        lambda n: hvd.allreduce(torch.ones(3, 4), name=n),
    )
    disagreement(
        "dimensions", lambda n: hvd.allreduce(torch.ones(6), name=n), lambda n: hvd.allreduce(torch.ones(6, 1), name=n)
    )
    disagreement(
        "empty", lambda n: hvd.allreduce(torch.ones(0), name=n), lambda n: hvd.allreduce(torch.ones(1), name=n)
    )
    disagreement(
        "scalar", lambda n: hvd.allreduce(torch.ones(1), name=n), lambda n: hvd.allreduce(torch.ones(()), name=n)
    )
    disagreement(
        "tail", lambda n: hvd.allgather(torch.ones(2, 3), name=n), lambda n: hvd.allgather(torch.ones(2, 4), name=n)
    )
    disagreement(
        "copied",
        lambda n: hvd.broadcast(torch.ones(2, 3), 0, name=n),
        lambda n: hvd.broadcast(torch.ones(3, 2), 0, name=n),
    )
    size = hvd.size()
    disagreement(
        "swapped",
        lambda n: hvd.alltoall(torch.ones(size, 3), name=n),
        lambda n: hvd.alltoall(torch.ones(size, 4), name=n),
    )
    disagreement(
        "scattered", lambda n: hvd.reducescatter(torch.ones(size), name=n),
        lambda n: hvd.reducescatter(torch.ones(size + 1), name=n),
    )  # fmt: skip


@case("mismatch", least=2)
def dtypes():
    calls = (
        hvd.allreduce, hvd.allgather, hvd.alltoall, hvd.reducescatter,
        lambda t, name: hvd.broadcast(t, 0, name=name), lambda t, name: hvd.allreduce_(t, name=name),
        lambda t, name: hvd.synchronize(hvd.allreduce_async(t, name=name)),
    )  # fmt: skip
    rows = hvd.size()
    for number, call in enumerate(calls):
        for one, two in ((torch.float32, torch.int32), (torch.float16, torch.bfloat16)):
            disagreement(
                f"kind of number {number}",
                lambda n, call=call, one=one: call(torch.ones(rows, dtype=one), name=n),
                lambda n, call=call, two=two: call(torch.ones(rows, dtype=two), name=n),
            )


@case("mismatch", least=2)
def operations_scales_and_roots():
    one = torch.ones(2)
    disagreement(
        "reduced", lambda n: hvd.allreduce(one, name=n, op=hvd.Sum), lambda n: hvd.allreduce(one, name=n, op=hvd.Max)
    )
    disagreement(
        "mean", lambda n: hvd.allreduce(one, name=n, op=hvd.Average), lambda n: hvd.allreduce(one, name=n, op=hvd.Sum)
    )
    disagreement(
        "before", lambda n: hvd.allreduce(one, name=n), lambda n: hvd.allreduce(one, name=n, prescale_factor=2.0)
    )
    disagreement(
        "after", lambda n: hvd.allreduce(one, name=n), lambda n: hvd.allreduce(one, name=n, postscale_factor=2.0)
    )
    disagreement(
        "parted", lambda n: hvd.reducescatter(torch.ones(4), name=n, op=hvd.Sum),
        lambda n: hvd.reducescatter(torch.ones(4), name=n, op=hvd.Average),
    )  # fmt: skip
    disagreement("root", lambda n: hvd.broadcast(one, 0, name=n), lambda n: hvd.broadcast(one, 1, name=n))
    with refused("every root"):
        hvd.broadcast(one, hvd.rank(), name="every root")
    healthy()


@case("mismatch", least=2)
def kinds_of_collective():
    rows = hvd.size()
    calls = [
        lambda n: hvd.allreduce(torch.ones(rows), name=n), lambda n: hvd.allgather(torch.ones(rows), name=n),
        lambda n: hvd.broadcast(torch.ones(rows), 0, name=n), lambda n: hvd.alltoall(torch.ones(rows), name=n),
        lambda n: hvd.reducescatter(torch.ones(rows), name=n),
    ]  # fmt: skip
    for usual in calls:
        for other in calls:
            if usual is not other:
                disagreement("what is it", usual, other)


@case("mismatch", least=2)
def process_sets():
    size = hvd.size()
    group = hvd.add_process_set([0, size - 1]) if size > 2 else hvd.add_process_set([1])
    odd = size - 1
    if size > 2:
        own = group if hvd.rank() == odd else hvd.global_process_set
        with refused("in which set", odd, error=core.HorovodInternalError):
            hvd.allreduce(torch.ones(2), name="in which set", process_set=own)
    healthy()
    hvd.remove_process_set(group)
    with refused(error=(core.HorovodInternalError, ValueError)):
        hvd.add_process_set(hvd.ProcessSet([1] if hvd.rank() == 0 else [0]))
    healthy("after sets that the ranks did not agree on")


@case("mismatch", least=2)
def members_of_groups():
    one, two = torch.ones(2), torch.ones(3)
    disagreement(
        "team", lambda n: hvd.grouped_allreduce([one, one], name=n), lambda n: hvd.grouped_allreduce([one, two], name=n)
    )
    disagreement(
        "crew", lambda n: hvd.grouped_allgather([one, one], name=n),
        lambda n: hvd.grouped_allgather([one, one.double()], name=n),
    )  # fmt: skip
    disagreement(
        "band", lambda n: hvd.grouped_allreduce([one, one], name=n), lambda n: hvd.grouped_allreduce([one] * 3, name=n)
    )


@case("mismatch", least=2)
def roots_that_do_not_exist():
    for root in (hvd.size(), -1, 10**6):
        with refused("rootless", root if root > 0 else "-1"):
            hvd.broadcast(torch.ones(2), root, name="rootless")
        healthy()
        with refused("rootless"):
            hvd.broadcast_(torch.ones(2), root, name="rootless")
        healthy()


@case("mismatch", least=2)
def splits_of_one_rank():
    """A rank whose own splits are wrong is told at once; the others, who wait for it, learn of it as well."""
    size = hvd.size()
    for odd in {0, size - 1}:
        splits = [1] * (size - 1) + [5] if hvd.rank() == odd else [1] * size
        with refused("rows"):
            hvd.alltoall(torch.ones(size), splits=splits, name="rows")
        healthy(f"after the splits of rank {odd}")


@case("mismatch", least=2)
def other_tensors_in_flight_are_not_touched():
    rank, size = hvd.rank(), hvd.size()
    sound = [hvd.allreduce_async(torch.full((3,), n + 1.0), name=f"sound {n}", op=hvd.Sum) for n in range(20)]
    torn = [hvd.allreduce_async(torch.ones(1 + (rank == n % size)), name=f"torn {n}") for n in range(10)]
    more = [hvd.allgather_async(torch.ones(rank + 1), name=f"more {n}") for n in range(5)]
    for n, handle in enumerate(torn):
        with refused(f"torn {n}", error=core.HorovodInternalError):
            hvd.synchronize(handle)
    for n, handle in enumerate(sound):
        assert hvd.synchronize(handle).tolist() == [size * (n + 1.0)] * 3
    for handle in more:
        assert hvd.synchronize(handle).numel() == size * (size + 1) // 2
    for n in range(len(torn)):
        hvd.allreduce(torch.ones(2), name=f"torn {n}")  # the name is free again


@case("mismatch", least=2)
def poll_is_true_for_what_went_wrong():
    handle = hvd.allreduce_async(torch.ones(1 + hvd.rank()), name="polled")
    deadline = time.monotonic() + 5
    while not hvd.poll(handle):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    with refused("polled", error=core.HorovodInternalError):
        hvd.synchronize(handle)
    healthy()


@case("mismatch", least=3)
def which_ranks_differ_is_told():
    odd = 1
    with refused("three", odd, error=core.HorovodInternalError):
        hvd.allreduce(torch.ones(2 + (hvd.rank() == odd)), name="three")
    with refused("all differ", *range(1, hvd.size()), error=core.HorovodInternalError):
        hvd.allreduce(torch.ones(hvd.rank() + 1), name="all differ")
    healthy()

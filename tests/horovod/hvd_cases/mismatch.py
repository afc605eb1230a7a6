"""Cases of collectives on which the ranks do not agree: an error on every rank, and the job goes on."""

import time

import torch

import platforms.horovod.core as core
import platforms.horovod.torch as hvd

from .lab import case, healthy, refused

ones = torch.ones


def disagreement(name, usual, other, *words):
    """One rank at a time calls `other` where the others call `usual`; all get an error that names tensor and rank."""
    for odd in {0, hvd.size() - 1}:
        call = other if hvd.rank() == odd else usual
        with refused(name, odd, *words, error=core.HorovodInternalError):
            call(name)
        healthy(f"after {name}, rank {odd} being odd")


def call(function, *args, **options):
    return lambda name: function(*args, name=name, **options)


@case("mismatch", least=2)
def arguments_of_one_collective():
    size, two = hvd.size(), ones(2)
    for name, function, usual, other in (
        ("width", hvd.allreduce, [ones(4)], [ones(5)]),
        ("same count", hvd.allreduce, [ones(2, 6)], [ones(3, 4)]),
        ("dimensions", hvd.allreduce, [ones(6)], [ones(6, 1)]),
        ("empty", hvd.allreduce, [ones(0)], [ones(1)]),
        ("scalar", hvd.allreduce, [ones(1)], [ones(())]),
        ("tail", hvd.allgather, [ones(2, 3)], [ones(2, 4)]),
        ("copied", hvd.broadcast, [ones(2, 3), 0], [ones(3, 2), 0]),
        ("swapped", hvd.alltoall, [ones(size, 3)], [ones(size, 4)]),
        ("scattered", hvd.reducescatter, [ones(size)], [ones(size + 1)]),
        ("root", hvd.broadcast, [two, 0], [two, 1]),
        ("team", hvd.grouped_allreduce, [[two, two]], [[two, ones(3)]]),
        ("band", hvd.grouped_allreduce, [[two, two]], [[two] * 3]),
        ("crew", hvd.grouped_allgather, [[two, two]], [[two, two.double()]]),
        ("number", hvd.allreduce, [two], [two.int()]),
        ("numbers", hvd.allgather, [two.half()], [two.bfloat16()]),
        ("in place", hvd.allreduce_, [two.clone()], [two.double()]),
        ("root's", hvd.broadcast, [two, 0], [two.int(), 0]),
        ("parts", hvd.reducescatter, [ones(size)], [ones(size).half()]),
        ("swap", hvd.alltoall, [ones(size)], [ones(size).half()]),
    ):
        disagreement(name, call(function, *usual), call(function, *other))
    for name, function, usual, other in (
        ("reduced", hvd.allreduce, {"op": hvd.Sum}, {"op": hvd.Max}),
        ("mean", hvd.allreduce, {"op": hvd.Average}, {"op": hvd.Sum}),
        ("before", hvd.allreduce, {}, {"prescale_factor": 2.0}),
        ("after", hvd.allreduce, {}, {"postscale_factor": 2.0}),
        ("parted", hvd.reducescatter, {"op": hvd.Sum}, {"op": hvd.Average}),
    ):
        disagreement(name, call(function, two, **usual), call(function, two, **other))
    with refused("every root"):
        hvd.broadcast(two, hvd.rank(), name="every root")
    for root in (size, -1, 10**6):  # there are no such ranks
        for function in (hvd.broadcast, hvd.broadcast_):
            with refused("rootless", root if root > 0 else "-1"):
                function(ones(2), root, name="rootless")
            healthy()


@case("mismatch", least=2)
def kinds_of_collective():
    rows = ones(hvd.size())
    calls = [
        call(hvd.allreduce, rows),
        call(hvd.allgather, rows),
        call(hvd.broadcast, rows, 0),
        call(hvd.alltoall, rows),
        call(hvd.reducescatter, rows),
    ]
    for usual, other in zip(calls, calls[1:], strict=False):
        disagreement("what is it", usual, other)


@case("mismatch", least=2)
def other_tensors_in_flight_are_not_touched():
    rank, size = hvd.rank(), hvd.size()
    sound = [hvd.allreduce_async(torch.full((3,), n + 1.0), name=f"sound {n}", op=hvd.Sum) for n in range(20)]
    torn = [hvd.allreduce_async(ones(1 + (rank == n % size)), name=f"torn {n}") for n in range(10)]
    more = [hvd.allgather_async(ones(rank + 1), name=f"more {n}") for n in range(5)]
    for n, handle in enumerate(torn):
        with refused(f"torn {n}", error=core.HorovodInternalError):
            hvd.synchronize(handle)
    for n, handle in enumerate(sound):
        assert hvd.synchronize(handle).tolist() == [size * (n + 1.0)] * 3
    for handle in more:
        assert hvd.synchronize(handle).numel() == size * (size + 1) // 2
    handle = hvd.allreduce_async(ones(1 + rank), name="torn 0")  # the name is free again
    while not hvd.poll(handle):  # true for what went wrong, too
        time.sleep(0.002)
    with refused("torn 0", error=core.HorovodInternalError):
        hvd.synchronize(handle)
    healthy()


@case("mismatch", least=2)
def names_in_another_order():
    """What stands at one place differs: both names are told, on all ranks, and what comes after goes on."""
    names = ["one", "two"] if hvd.rank() else ["two", "one"]
    handles = [hvd.allreduce_async(ones(2), name=name) for name in names]
    for handle in handles:
        with refused("one", "two", "same order", 0, error=core.CollectiveError):
            hvd.synchronize(handle)
    healthy()

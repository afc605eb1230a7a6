"""Collectives on torch tensors, by Horovod's names (https://horovod.readthedocs.io/en/stable/api.html).

A collective is known by its name: ranks may submit in any order, and one runs when all ranks of its
process set have submitted the same name. Without a name the calls of one kind are counted.
Arguments that the ranks do not give alike are a CollectiveError on every one of them, and a rank
that is lost is a RankLost; both are HorovodInternalErrors, which is a RuntimeError.
"""

from ..core import *  # noqa: F403  (Horovod has these here too)
from ..core import Entry, global_process_set, job
from .handles import poll, submit, synchronize
from .movements import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
)
from .reductions import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
    sparse_allreduce_async,
)


def join(device=-1):
    """Say that this rank has no more data; it takes part in the other ranks' sums with zeros until all have joined.

    Args:
        device: accepted as in Horovod; zeros are made where they are needed.

    Returns:
        The rank that joined last.
    """
    here = job.current()
    entry = here.engine.submit(Entry({"kind": "join", "name": "join", "set": 0}))
    return here.engine.wait(entry)


def barrier(process_set=global_process_set):
    """Wait until all ranks of the process set have called this."""
    synchronize(submit("barrier", [], None, None, process_set, lambda result: None))


__all__ = [
    "allgather", "allgather_async", "allreduce", "allreduce_", "allreduce_async",
    "allreduce_async_", "alltoall", "alltoall_async", "barrier", "broadcast", "broadcast_", "broadcast_async",
    "broadcast_async_", "grouped_allgather", "grouped_allgather_async", "grouped_allreduce", "grouped_allreduce_",
    "grouped_allreduce_async", "grouped_allreduce_async_", "grouped_reducescatter", "grouped_reducescatter_async",
    "join", "poll", "reducescatter", "reducescatter_async", "sparse_allreduce_async", "synchronize",
]  # fmt: skip

"""Python objects between ranks (`broadcast_object`, `allgather_object`).

Names and behaviour as in the API reference of horovod.torch; a pickle travels signed with the job's secret, and is
not opened before the signature has been checked.
"""

import torch

try:  # takes lambdas and classes of notebooks too
    import cloudpickle as pickle
except ImportError:
    import pickle

from .. import core
from .mpi_ops import allgather, broadcast_, global_process_set, rank

UNPICKLABLE = -1  # sent as the length, so that the other ranks fail with the root instead of waiting for it


def broadcast_object(obj, root_rank=0, name=None, process_set=global_process_set):
    """`obj` of `root_rank` on every rank; it has to be picklable. The root gets back what it gave.

    Raises:
        ValueError: the root's object cannot be pickled (on the root: what pickle said).
    """
    name = name or "broadcast_object"
    if rank() != root_rank:
        return _received(root_rank, name, process_set)
    try:
        data, failure = core.sign(pickle.dumps(obj)), None
    except Exception as error:  # pickle raises whatever the object's class does
        data, failure = b"", error
    length = torch.tensor([UNPICKLABLE if failure else len(data)])
    broadcast_(length, root_rank, name + ".sz", process_set)
    if failure:
        raise failure
    broadcast_(_as_tensor(data), root_rank, name + ".t", process_set)
    return obj


def _received(root_rank, name, process_set):
    length = torch.zeros(1, dtype=torch.int64)
    broadcast_(length, root_rank, name + ".sz", process_set)
    if length.item() == UNPICKLABLE:
        raise ValueError(f"{name!r}: the object of rank {root_rank} cannot be pickled; its own error says why")
    data = torch.empty(int(length), dtype=torch.uint8)
    broadcast_(data, root_rank, name + ".t", process_set)
    return pickle.loads(core.verify(_as_bytes(data)))


def broadcast_object_fn(root_rank=0, name=None, process_set=global_process_set):
    """`broadcast_object` with everything but the object given."""

    def broadcast(obj):
        return broadcast_object(obj, root_rank, name, process_set)

    return broadcast


def allgather_object(obj, name=None, process_set=global_process_set):
    """A list of every rank's `obj`, in the order of ranks.

    Raises:
        ValueError: the object of a rank cannot be pickled; every rank raises (that rank: what pickle said).
    """
    name = name or "allgather_object"
    try:
        data, failure = core.sign(pickle.dumps(obj)), None
    except Exception as error:  # pickle raises whatever the object's class does
        data, failure = b"", error
    lengths = allgather(torch.tensor([UNPICKLABLE if failure else len(data)]), name + ".sz", process_set).tolist()
    if failure:
        raise failure
    if UNPICKLABLE in lengths:
        who = [r for r, length in zip(_ranks(process_set), lengths) if length == UNPICKLABLE]
        raise ValueError(f"{name!r}: the objects of ranks {who} cannot be pickled; their own errors say why")
    gathered = allgather(_as_tensor(data), name + ".t", process_set)
    return [pickle.loads(core.verify(_as_bytes(part))) for part in gathered.split(lengths)]


def _ranks(process_set):
    return process_set.ranks or range(process_set.size())


def _as_tensor(data):
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _as_bytes(tensor):
    return tensor.numpy().tobytes()

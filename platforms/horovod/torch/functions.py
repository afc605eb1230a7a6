"""What ranks send each other at the start of a training: parameters, the state of optimizers, objects.

Names and behaviour as in the API reference of horovod.torch, with one difference. Horovod takes a step with zero
gradients to create the state of an optimizer that has none; here the root's state is sent, pickled.
"""

import torch
from torch.utils._pytree import tree_map

try:  # takes lambdas and classes of notebooks too
    import cloudpickle as pickle
except ImportError:
    import pickle

from .mpi_ops import FORMS, global_process_set, rank, synchronize

__all__ = ["broadcast_parameters", "broadcast_optimizer_state", "broadcast_object", "broadcast_object_fn"]
__all__ += ["allgather_object"]
UNPICKLABLE = -1  # sent as the length when pickling fails, so that no rank waits for the data
broadcast_, allgather = FORMS["broadcast_"], FORMS["allgather"]


def broadcast_object(obj, root_rank=0, name=None, process_set=global_process_set):
    """`obj` of `root_rank` on every rank; the root gets back what it gave. ValueError where it cannot be pickled."""
    name, ours = name or "broadcast_object", rank() == root_rank
    data, length, failure = _pickled(obj) if ours else (None, torch.zeros(1, dtype=torch.int64), None)
    broadcast_(length, root_rank, name + ".sz", process_set)
    if failure:
        raise failure
    if length.item() == UNPICKLABLE:
        raise ValueError(f"{name!r}: the object of rank {root_rank} cannot be pickled; its own error says why")
    data = data if ours else torch.empty(int(length), dtype=torch.uint8)
    broadcast_(data, root_rank, name + ".t", process_set)
    return obj if ours else _unpickled(data)


def broadcast_object_fn(root_rank=0, name=None, process_set=global_process_set):
    """`broadcast_object` with everything but the object given."""
    return lambda obj: broadcast_object(obj, root_rank, name, process_set)


def allgather_object(obj, name=None, process_set=global_process_set):
    """A list of every rank's `obj`, in the order of ranks. ValueError on every rank where one cannot be pickled."""
    name = name or "allgather_object"
    data, length, failure = _pickled(obj)
    lengths = allgather(length, name + ".sz", process_set).tolist()
    if failure:
        raise failure
    if UNPICKLABLE in lengths:
        who = [r for r, length in zip(process_set.ranks, lengths) if length == UNPICKLABLE]
        raise ValueError(f"{name!r}: the objects of ranks {who} cannot be pickled; their own errors say why")
    return [_unpickled(part) for part in allgather(data, name + ".t", process_set).split(lengths)]


def _pickled(obj):
    """(pickle as a tensor of bytes or None, its length as a tensor, the error of pickle or None)."""
    try:
        data = pickle.dumps(obj)
    except Exception as error:  # pickle raises whatever the object's class does
        return None, torch.tensor([UNPICKLABLE]), error
    return torch.frombuffer(bytearray(data), dtype=torch.uint8), torch.tensor([len(data)]), None


def _unpickled(tensor):
    return pickle.loads(tensor.numpy().tobytes())


def broadcast_parameters(params, root_rank, process_set=global_process_set):
    """Overwrite the tensors of every rank by those of `root_rank` (a global rank), in place.

    Args:
        params: `model.state_dict()` or another dict of tensors, `model.named_parameters()` or other pairs
            (name, tensor), or tensors. Entries that are None are left out.

    Raises:
        ValueError: something else was given, or a value is not a tensor.
    """
    if isinstance(params, dict):
        params = params.items()
    elif isinstance(params, (str, bytes, torch.Tensor)) or not hasattr(params, "__iter__"):
        raise ValueError(
            f"invalid params of type: {type(params)}; give model.state_dict(), model.named_parameters() or tensors"
        )
    pairs = [entry if isinstance(entry, tuple) else (None, entry) for entry in params]
    pairs = [(name, tensor) for name, tensor in pairs if tensor is not None]
    if all(name is not None for name, _ in pairs):  # ranks may give them in other orders
        pairs.sort(key=lambda pair: str(pair[0]))
    for name, tensor in pairs:
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(
                f"{name!r} is a {type(tensor).__name__}, not a tensor: send it by broadcast_object, which returns it"
            )
    for handle in [FORMS["broadcast_async_"](tensor, root_rank, name, process_set) for name, tensor in pairs]:
        synchronize(handle)


def broadcast_optimizer_state(optimizer, root_rank, model=None, process_set=global_process_set):
    """Give every rank the options (learning rates, …) and the state (momenta, …) of `root_rank`'s optimizer.

    Takes any optimizer of torch but LBFGS, wrapped by `DistributedOptimizer` or not. The other ranks load the root's
    `state_dict()`; if it has no state, they lose theirs. The root's optimizer is only read. `model` has no effect.

    Raises:
        ValueError: LBFGS; or the optimizers of the ranks are of different classes or hold different parameters.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state: its history has no fixed form; create a new one")
    ours = type(optimizer).__name__, [[tuple(p.shape) for p in group["params"]] for group in optimizer.param_groups]
    everybody = allgather_object(ours, "broadcast_optimizer_state.kind", process_set)
    odd = [r for r, theirs in zip(process_set.ranks, everybody) if theirs != everybody[0]]
    if odd:
        raise ValueError(
            f"the optimizers of ranks {odd} differ from that of rank {process_set.ranks[0]} in class, in groups or in "
            "shapes of parameters: build the same model and the same optimizer on every rank"
        )
    state = tree_map(_on_cpu, optimizer.state_dict()) if rank() == root_rank else None  # devices have other numbers
    state = broadcast_object(state, root_rank, "broadcast_optimizer_state", process_set)
    if rank() != root_rank:
        optimizer.load_state_dict(state)


def _on_cpu(value):
    return value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value  # a part alone, if it is a part

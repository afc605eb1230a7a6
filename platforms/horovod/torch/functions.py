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

from .mpi_ops import allgather, broadcast_, broadcast_async_, global_process_set, rank, synchronize

__all__ = [
    "broadcast_parameters",
    "broadcast_optimizer_state",
    "broadcast_object",
    "broadcast_object_fn",
    "allgather_object",
]
UNPICKLABLE = -1  # sent as the length when pickling fails, so that no rank waits for the data


def broadcast_object(obj, root_rank=0, name=None, process_set=global_process_set):
    """`obj` of `root_rank` on every rank; it has to be picklable. The root gets back what it gave.

    Raises:
        ValueError: the root's object cannot be pickled (on the root: pickle's own error).
    """
    name = name or "broadcast_object"
    if rank() != root_rank:
        return _received(root_rank, name, process_set)
    data, length, failure = _pickled(obj)
    broadcast_(length, root_rank, name + ".sz", process_set)
    if failure:
        raise failure
    broadcast_(data, root_rank, name + ".t", process_set)
    return obj


def _received(root_rank, name, process_set):
    length = torch.zeros(1, dtype=torch.int64)
    broadcast_(length, root_rank, name + ".sz", process_set)
    if length.item() == UNPICKLABLE:
        raise ValueError(f"{name!r}: the object of rank {root_rank} cannot be pickled; its own error says why")
    data = torch.empty(int(length), dtype=torch.uint8)
    broadcast_(data, root_rank, name + ".t", process_set)
    return _unpickled(data)


def broadcast_object_fn(root_rank=0, name=None, process_set=global_process_set):
    """`broadcast_object` with everything but the object given."""
    return lambda obj: broadcast_object(obj, root_rank, name, process_set)


def allgather_object(obj, name=None, process_set=global_process_set):
    """A list of every rank's `obj`, in the order of ranks.

    Raises:
        ValueError: the object of a rank cannot be pickled; every rank raises (that rank: pickle's own error).
    """
    name = name or "allgather_object"
    data, length, failure = _pickled(obj)
    lengths = allgather(length, name + ".sz", process_set).tolist()
    if failure:
        raise failure
    if UNPICKLABLE in lengths:
        who = [r for r, length in zip(process_set.ranks, lengths) if length == UNPICKLABLE]
        raise ValueError(f"{name!r}: the objects of ranks {who} cannot be pickled; their own errors say why")
    gathered = allgather(data, name + ".t", process_set)
    return [_unpickled(part) for part in gathered.split(lengths)]


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
    handles = [broadcast_async_(tensor, root_rank, name, process_set) for name, tensor in _named(params)]
    for handle in handles:
        synchronize(handle)


def _named(params):
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
    return pairs


def broadcast_optimizer_state(optimizer, root_rank, model=None, process_set=global_process_set):
    """Give every rank the options (learning rates, …) and the state (momenta, …) of `root_rank`'s optimizer.

    Takes any optimizer of torch but LBFGS, wrapped by `DistributedOptimizer` or not. A rank whose optimizer has not
    stepped yet gets the state; if the root's has not, the others lose theirs. The root's optimizer is only read.
    Horovod needs `model` to find sparse parameters; here it has no effect, since the state itself is sent.

    Raises:
        ValueError: LBFGS; or the optimizers of the ranks are of different classes or hold different parameters.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state: its history has no fixed form; create a new one")
    _check_alike(optimizer, process_set)
    ours = tree_map(_parcel, _state_of(optimizer)) if rank() == root_rank else None
    state = broadcast_object(ours, root_rank, "broadcast_optimizer_state", process_set)
    if rank() != root_rank:
        _install(optimizer, state)


def _check_alike(optimizer, process_set):
    ours = type(optimizer).__name__, [[tuple(p.shape) for p in group["params"]] for group in optimizer.param_groups]
    everybody = allgather_object(ours, "broadcast_optimizer_state.kind", process_set)
    ranks = process_set.ranks
    odd = [r for r, theirs in zip(ranks, everybody) if theirs != everybody[0]]
    if odd:
        raise ValueError(
            f"the optimizers of ranks {odd} differ from that of rank {ranks[0]} in class, in groups or in shapes of "
            "parameters: build the same model and the same optimizer on every rank"
        )


def _parameters(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _state_of(optimizer):
    """The options of each group, the state of each parameter by its place, and what has other keys than parameters."""
    place = {id(parameter): i for i, parameter in enumerate(_parameters(optimizer))}
    return {
        "options": [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups],
        "states": {place[id(key)]: value for key, value in optimizer.state.items() if id(key) in place},
        "others": {key: value for key, value in optimizer.state.items() if not isinstance(key, torch.Tensor)},
    }


class Parcel:
    """Stands for a tensor of a device, which may have another number on another rank."""

    def __init__(self, tensor):
        self.tensor = tensor.cpu()


def _parcel(value):
    if not isinstance(value, torch.Tensor):
        return value
    return Parcel(value) if value.device.type != "cpu" else value.detach().clone()  # a part alone, if it is a part


def _install(optimizer, state):
    parameters = _parameters(optimizer)

    def unpacked(part, like=parameters[0]):
        return tree_map(lambda value: value.tensor.to(like.device) if isinstance(value, Parcel) else value, part)

    for group, options in zip(optimizer.param_groups, unpacked(state["options"])):
        for key, value in options.items():
            ours = group.get(key)
            if isinstance(ours, torch.Tensor) and isinstance(value, torch.Tensor) and ours.shape == value.shape:
                ours.copy_(value)  # a scheduler or a captured graph may hold on to this very tensor
            else:
                group[key] = value
    optimizer.state.clear()
    for place, value in state["states"].items():
        optimizer.state[parameters[place]] = unpacked(value, parameters[place])
    optimizer.state.update(unpacked(state["others"]))

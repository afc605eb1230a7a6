"""An optimizer's options and state from one rank to all others (`broadcast_optimizer_state`).

Horovod takes a step with zero gradients to make the state of a rank that has none, and sends numbers through
tensors. Here the root's state is copied as it is: a skeleton, pickled, and the tensors in it as tensors.
"""

import copy

import torch

from .mpi_ops import broadcast_async_, global_process_set, rank, synchronize
from .objects import allgather_object, broadcast_object


def broadcast_optimizer_state(optimizer, root_rank, process_set=global_process_set):
    """Give every rank the options (learning rates, …) and the state (momenta, …) of `root_rank`'s optimizer.

    Takes any optimizer of torch but LBFGS, wrapped by `DistributedOptimizer` or not. A rank whose optimizer has not
    stepped yet gets the state; if the root's has not, the others lose theirs. The root's optimizer is only read.

    Raises:
        ValueError: LBFGS; or the optimizers of the ranks are of different classes or hold different parameters.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state: its history has no fixed form; start it anew")
    _check_alike(optimizer, process_set)
    name = "broadcast_optimizer_state"
    if rank() == root_rank:
        tensors = []
        broadcast_object(_skeleton(_state_of(optimizer), tensors), root_rank, name, process_set)
    else:
        tensors, skeleton = [], broadcast_object(None, root_rank, name, process_set)
        state = _with_room(skeleton, _parameters(optimizer), tensors)
    handles = [broadcast_async_(t, root_rank, f"{name}.{i}", process_set) for i, t in enumerate(tensors)]
    for handle in handles:
        synchronize(handle)
    if rank() != root_rank:
        _install(optimizer, state)


def _check_alike(optimizer, process_set):
    ours = type(optimizer).__name__, [[tuple(p.shape) for p in group["params"]] for group in optimizer.param_groups]
    everybody = allgather_object(ours, "broadcast_optimizer_state.kind", process_set)
    ranks = list(process_set.ranks or range(len(everybody)))
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


class Room:
    """Stands in a skeleton for a tensor that travels by itself."""

    def __init__(self, tensor):
        self.shape, self.dtype, self.on_cpu = tuple(tensor.shape), tensor.dtype, tensor.device.type == "cpu"

    def tensor(self, like):
        """An empty tensor for it: on the CPU if the root's was there, else where the parameter `like` is."""
        if self.on_cpu and like.device.type != "cpu":
            return torch.empty(self.shape, dtype=self.dtype)
        if self.shape == tuple(like.shape):  # fused steps want moments laid out as their parameters
            return torch.empty_like(like, dtype=self.dtype, requires_grad=False)
        return torch.empty(self.shape, dtype=self.dtype, device=like.device)


def _skeleton(value, tensors):
    """`value` with every dense tensor replaced by a `Room` and appended to `tensors`."""
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        tensors.append(value.detach().contiguous())  # a view; a copy of the few that have gaps
        return Room(value)
    return _mapped(value, lambda part: _skeleton(part, tensors))


def _with_room(skeleton, parameters, tensors):
    """`skeleton` with an empty tensor in every `Room`, appended to `tensors` in the order of `_skeleton`."""

    def fill(value, like):
        if isinstance(value, Room):
            tensors.append(value.tensor(like))
            return tensors[-1]
        return _mapped(value, lambda part: fill(part, like))

    first = parameters[0]
    return {
        "options": fill(skeleton["options"], first),
        "states": {place: fill(state, parameters[place]) for place, state in skeleton["states"].items()},
        "others": fill(skeleton["others"], first),
    }


def _mapped(value, function):
    """`value` with `function` applied to what its dicts, lists and tuples hold."""
    if isinstance(value, dict):
        made = copy.copy(value)  # keeps the default of a defaultdict
        for key, part in value.items():
            made[key] = function(part)
        return made
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[function(part) for part in value])
    if type(value) in (list, tuple):
        return type(value)(function(part) for part in value)
    return value


def _install(optimizer, state):
    for group, options in zip(optimizer.param_groups, state["options"]):
        for key, value in options.items():
            ours = group.get(key)
            if isinstance(ours, torch.Tensor) and isinstance(value, torch.Tensor) and ours.shape == value.shape:
                ours.copy_(value)  # a scheduler or a captured graph may hold on to this very tensor
            else:
                group[key] = value
    parameters = _parameters(optimizer)
    optimizer.state.clear()
    optimizer.state.update((parameters[place], value) for place, value in state["states"].items())
    optimizer.state.update(state["others"])

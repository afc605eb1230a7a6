"""What ranks tell each other at the start of a training: parameters, the state of optimizers, objects.

Names and behaviour as in the API reference of horovod.torch.
"""

import torch

from .mpi_ops import broadcast_async_, global_process_set, synchronize
from .objects import allgather_object, broadcast_object, broadcast_object_fn
from .optimizer_state import broadcast_optimizer_state

__all__ = [
    "broadcast_parameters", "broadcast_optimizer_state", "broadcast_object", "broadcast_object_fn", "allgather_object",
]  # fmt: skip


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
        params = sorted(params.items(), key=lambda item: str(item[0]))
    elif isinstance(params, (str, bytes, torch.Tensor)) or not hasattr(params, "__iter__"):
        raise ValueError(
            f"invalid params of type: {type(params)}; give model.state_dict(), model.named_parameters() or tensors"
        )
    pairs = [entry if isinstance(entry, tuple) else (None, entry) for entry in params]
    pairs = [(name, tensor) for name, tensor in pairs if tensor is not None]
    for name, tensor in pairs:
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(
                f"{name!r} is a {type(tensor).__name__}, not a tensor: send it by broadcast_object, which returns it"
            )
    return pairs

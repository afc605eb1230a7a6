"""What a rank holds in memory while it trains, in bytes, counted from its tensors.

`helpers.profile.memory` shows one step of it over time; this is what every record has.
"""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .sharding import local


def held(model, parameters, optimizer) -> dict:
    """{kind: bytes} on this rank, between two steps.

    Args:
        parameters: what the optimizer updates; copies in fp32 of the model's own count as its state.
    """
    own = list(model.parameters())
    known = {id(p) for p in own}
    masters = [p for p in parameters if id(p) not in known]
    own_state = getattr(optimizer, "optim", optimizer).state  # inside of a ZeroRedundancyOptimizer this rank's share
    state = [value for of_one in own_state.values() for value in of_one.values()]
    return {
        "parameters": _bytes(own),
        "gradients": _bytes(p.grad for p in (*own, *masters)),
        "optimizer state": _bytes(state) + _bytes(masters),
    }


def _bytes(tensors):
    there = [local(tensor) for tensor in tensors if torch.is_tensor(tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in there)


class Activations(TorchDispatchMode):
    """Counts what a forward pass in its block leaves for the backward pass: `bytes`, known when the block ends.

    These are the tensors made in the block that are still alive at its end, the weights excepted. That includes
    copies of weights in a half format, and whatever activation checkpointing keeps.
    """

    def __init__(self, model):
        super().__init__()
        self.model, self.bytes, self._made = model, None, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if torch.is_tensor(tensor) and tensor.layout == torch.strided:
                storage = tensor.untyped_storage()
                self._made[id(storage)] = weakref.ref(storage)
        return out

    def __exit__(self, *raised):
        done = super().__exit__(*raised)
        weights = {local(p).untyped_storage().data_ptr() for p in self.model.parameters()}  # gathered ones, too
        alive = {id(s): s for made in self._made.values() if (s := made()) is not None}
        self.bytes = sum(s.nbytes() for s in alive.values() if s.data_ptr() not in weights)
        return done

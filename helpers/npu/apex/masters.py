"""Float32 master weights: what the optimizer updates in place of half weights.

A weight in half cannot take an update 2000 times smaller than itself; the master can (section 3.1 of
arXiv:1710.03740). Checkpoints hold the masters, so that a resumed training goes on where it was.
"""

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from .casting import HALF

_MASTERS = WeakTensorKeyDictionary()  # half weight -> its Master


class Master:
    """The float32 `value` (a Parameter) of one half `weight`.

    Of weight and master the one written last counts: the optimizer and `load_state_dict` write the
    master; DDP, an initialisation or a clamp of the reader's write the weight, and not every such write
    can be heard of. So the two are compared, element by element, before each use.
    """

    def __init__(self, weight):
        self.value = nn.Parameter(weight.detach().float(), requires_grad=weight.requires_grad)
        self._version = self.value._version

    @torch.no_grad()
    def pull(self, weight):
        """Take over the elements of `weight` that are not those of the master rounded."""
        if self.value._version == self._version:
            same = weight == self.value.to(weight.dtype)
            self.value.copy_(torch.where(same, self.value, weight.float()))
            self._version = self.value._version

    @torch.no_grad()
    def push(self, weight):
        """Round the master into `weight`."""
        weight.copy_(self.value)
        self._version = self.value._version


def of(weight) -> Master:
    """The master of `weight`, made when it has none."""
    if weight not in _MASTERS:
        _MASTERS[weight] = Master(weight)
    return _MASTERS[weight]


def keep_in_checkpoints(model):
    """Let `state_dict` of `model` give float32, that of masters where there are any, and `load_state_dict` set them."""
    for module in model.modules():
        own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        if any(tensor.dtype in HALF for tensor in own):
            module.register_state_dict_post_hook(_save_exact)
            module.register_load_state_dict_pre_hook(_load_exact)


def _save_exact(module, state_dict, prefix, local_metadata):
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        saved = state_dict.get(prefix + name)
        if saved is None or saved is tensor or saved.dtype not in HALF:  # the tensor itself: keep_vars=True
            continue
        master = _MASTERS.get(tensor)
        if master is None:
            state_dict[prefix + name] = saved.float()
        else:
            master.pull(tensor)
            state_dict[prefix + name] = master.value.detach()


def _load_exact(module, state_dict, prefix, *_):
    for name, weight in module._parameters.items():
        master, value = _MASTERS.get(weight) if weight is not None else None, state_dict.get(prefix + name)
        if master is not None and torch.is_tensor(value) and value.shape == weight.shape:
            with torch.no_grad():
                master.value.copy_(value)
                master.push(weight)

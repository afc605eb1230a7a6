"""How much work the operators of a step have to do, and how fast a device can do it at best."""

import math
from collections import Counter
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from .. import measure
from ..device import synchronize
from . import kinds
from .kinds import CONVOLUTION, DEPTHWISE, KINDS, MATMUL, NORMALISATION, POINTWISE

ONLY_WRITTEN = (torch.ops.aten.copy_, torch.ops.aten.fill_, torch.ops.aten.zero_)  # they do not read what is there


class Work(TorchDispatchMode):
    """Counts in `done` what the operators of a step have to do: floating-point operations, or bytes."""

    def __init__(self, device):
        super().__init__()
        self.done, self._device = Counter(), device

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        shapes = [each.shape if torch.is_tensor(each) else None for each in args]
        kind = kinds.of_call(func.name().partition(".")[0], args, shapes, self._device)
        if kind in (POINTWISE, NORMALISATION):
            read = args[1:] if func._overloadpacket in ONLY_WRITTEN else args
            self.done[kind] += sum(map(_bytes, tree_leaves((read, kwargs, result))))
        elif kind in (CONVOLUTION, DEPTHWISE):
            self.done[kind] += _convolution_flops(func, args, result)
        elif kind == MATMUL and func._overloadpacket in flop_registry:
            self.done[kind] += flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=result)
        return result


def _bytes(each):
    """What an argument or result holds in memory; less than its shape says where it is expanded."""
    return min(each.nbytes, each.untyped_storage().nbytes()) if torch.is_tensor(each) else 0


def _convolution_flops(func, args, result):
    """Two for each weight, sample and place. (PyTorch's own formula is too high for groups, going backward.)"""
    backward = func._overloadpacket is torch.ops.aten.convolution_backward
    weight, transposed = (args[2], args[7]) if backward else (args[1], args[6])
    inputs, outputs = (args[1], args[0]) if backward else (args[0], result)
    places = inputs if transposed else outputs  # each is multiplied with the whole of the weights
    products = sum(args[-1][:2]) if backward else 1  # gradients of the input and of the weights
    return 2 * products * places.shape[0] * math.prod(places.shape[2:]) * weight.numel()


@dataclass(frozen=True)
class Peaks:
    """What a device was measured to do at best: FLOP/s of a large product in fp32, bytes/s of a large sum."""

    flops: float
    bandwidth: float

    def shares(self, profile) -> dict:
        """`profile.rates()` as shares of the peak that limits each kind of work.

        Tensors that fit in a cache are read faster than from memory, so a share of the bandwidth can be above 1.
        """
        limits = {kind: self.bandwidth if kind in (POINTWISE, NORMALISATION) else self.flops for kind in KINDS}
        return {kind: rate / limits[kind] for kind, rate in profile.rates().items()}


def peaks(device) -> Peaks:
    """Measure what `device` can do, in less than a second, with the threads that PyTorch now has."""
    device = torch.device(device)
    side, numbers = (768, 2**23) if device.type == "cpu" else (8192, 2**28)  # enough work to outweigh its start
    a, b, c = (torch.ones(side, side, device=device) for _ in range(3))
    product = _time(lambda: torch.mm(a, b, out=c), device)
    a, b, c = (torch.ones(numbers, device=device) for _ in range(3))
    total = _time(lambda: torch.add(a, b, out=c), device)
    return Peaks(flops=2 * side**3 / product, bandwidth=3 * a.nbytes / total)


def _time(function, device):
    """The median time (s) of a call."""
    spent = []
    for _ in range(measure.AT_LEAST + 2):
        synchronize(device)
        began = perf_counter()
        function()
        synchronize(device)
        spent.append(perf_counter() - began)
    return median(spent[2:])

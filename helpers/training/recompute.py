"""Activation checkpointing: a unit keeps its input only, and computes again in the backward pass what it needs there.

Chen et al., "Training deep nets with sublinear memory cost" (arXiv:1604.06174). "selective" keeps what is expensive
to compute, matrix products, convolutions and attention, and computes the rest again (Korthikanti et al.,
arXiv:2205.05198).
"""

from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from .sharding import units

ops = torch.ops.aten
EXPENSIVE = [
    ops.mm.default,
    ops.addmm.default,
    ops.bmm.default,
    ops.convolution.default,
    ops._scaled_dot_product_flash_attention_for_cpu.default,
    ops._scaled_dot_product_flash_attention.default,
    ops._scaled_dot_product_efficient_attention.default,
    ops._scaled_dot_product_cudnn_attention.default,
]


def prepare(model, what) -> None:
    """Let each unit of `model` (see `sharding.units`) recompute, in place; its parameters keep their names.

    Args:
        what: "full", "selective", or None for nothing.

    Raises:
        ValueError: the model has no such units.
    """
    if what is None:
        return
    parts = units(model)
    if not parts:
        raise ValueError(
            f"activation_checkpointing needs modules to recompute, and {type(model).__name__} has no children with "
            "weights of their own; give it `blocks`, an nn.ModuleList, or leave the setting out"
        )
    for unit in parts:
        unit.forward = partial(_recomputed, unit.forward, what, _norms(unit))


def _norms(unit):
    return [m for m in unit.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]


def _recomputed(forward, what, norms, *args, **kwargs):
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    contexts = {"context_fn": partial(_contexts, what, norms)} if norms or what == "selective" else {}
    return checkpoint(forward, *args, use_reentrant=False, **contexts, **kwargs)


def _contexts(what, norms):
    first, again = create_selective_checkpoint_contexts(EXPENSIVE) if what == "selective" else (nullcontext(),) * 2
    return first, _without_statistics(again, norms) if norms else again


@contextmanager
def _without_statistics(context, norms):
    """`context`, in which BatchNorm leaves its running statistics as they are: it has seen this batch before."""
    before = [(norm, norm.momentum, norm.num_batches_tracked.clone()) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        with context:
            yield
    finally:
        for norm, momentum, batches in before:
            norm.momentum = momentum
            norm.num_batches_tracked.copy_(batches)

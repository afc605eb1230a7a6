"""ZeRO-1 and FSDP2: optimizer state, gradients and weights cut into shards, one for each rank.

With ZeRO-1 (Rajbhandari et al., arXiv:1910.02054) every rank updates the weights of its share and sends them to the
others; the rest is DDP. With FSDP2 (torch.distributed.fsdp.fully_shard) a rank also keeps only its shard of weights and
gradients: the weights of a unit are gathered before it computes, and its gradients reduced to shards after.

What only a sharded run needs is imported in functions: it takes half as long as importing torch.
"""

from collections import Counter
from contextlib import contextmanager

import torch
from torch import nn

from ..config import no_batch_norm

SMALL = 0.1  # of the mean unit's weights: what has fewer is not worth a message of its own


def units(model) -> list:
    """The modules that are sharded, recomputed or compiled one by one: the model's `blocks`, or else its children.

    A list of layers stands for the layers in it. What has few weights, none, or some that another module uses too,
    is left to the model as a whole.
    """
    top = [model.blocks] if _is_list(getattr(model, "blocks", None)) else model.children()
    parts = [part for child in top for part in (child.children() if _is_list(child) else [child])]
    uses, parts = _uses(model), [part for part in parts if type(part).forward is not nn.Module.forward]
    sizes = {part: sum(p.numel() for p in part.parameters()) for part in parts}
    least = SMALL * sum(sizes.values()) / max(1, len(parts))
    alone = [part for part in parts if all(uses[which] == count for which, count in _uses(part).items())]
    return [part for part in alone if sizes[part] and sizes[part] >= least]


def _is_list(module):
    return isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential)) and len(module) > 0


def _uses(module):
    return Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))


# -- FSDP2 --------------------------------------------------------------------------------


def shard(model, device, groups=(), *, keep_weights=False, offload=False, dtype=None) -> nn.Module:
    """Shard `model`, in place, over the ranks of the process group; its parameters are DTensors then.

    Args:
        groups: (replicas, ranks that share one) for a hybrid, or () for one replica over all ranks.
        keep_weights: whether gathered weights are kept from the forward to the backward pass.
        offload: whether shards stay in the memory of the CPU.
        dtype: what weights are gathered and computed in, if not their own; gradients are then reduced in fp32.

    Raises:
        ValueError: there is nothing to shard, or BatchNorm is to compute in `dtype`.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    if dtype and any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        raise ValueError(no_batch_norm(type(model).__name__, {torch.bfloat16: "O2-bf16", torch.float16: "O2"}[dtype]))
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError(f"strategy 'fsdp' shards weights, and {type(model).__name__} has none to train")
    size = torch.distributed.get_world_size()
    names = {"mesh_dim_names": ("replicas", "shards")} if groups else {}
    options = {
        "mesh": init_device_mesh(device.type, groups or (size,), **names),
        "mp_policy": MixedPrecisionPolicy(dtype, torch.float32 if dtype else None),
        "offload_policy": CPUOffloadPolicy(pin_memory=device.type == "cuda") if offload else OffloadPolicy(),
    }
    if keep_weights:
        options["reshard_after_forward"] = False
    for module in (*units(model), model):
        fully_shard(module, **options)
        if device.type == "cpu":  # gloo's average was a sum in some releases (pytorch issue 162338)
            module.set_force_sum_reduction_for_comms(True)
    return model


@contextmanager
def without_reduction(model):
    """Gradients are added up on each rank, unsharded, and not reduced in the block."""
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def release(model) -> None:
    """Free the gathered weights, of which some stay after a forward pass that no backward pass follows."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def local(tensor):
    """What this rank holds of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # only a DTensor has it


def like(whole, tensor):
    """`whole`, which every rank has, sharded as `tensor` is; whatever has another shape is left as it is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(tensor, DTensor) or whole.shape != tensor.shape:
        return whole
    return distribute_tensor(whole.to(tensor.device), tensor.device_mesh, tensor.placements)


# -- ZeRO-1 -------------------------------------------------------------------------------


def zero(parameters, optimizer, **options):
    """A ZeroRedundancyOptimizer: an `optimizer` (a class) with its `options` for a share of the parameters."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(parameters, optimizer, **options)


def own_optimizer(optimizer):
    """The optimizer with this rank's state: that inside of a ZeroRedundancyOptimizer, or the one given."""
    return getattr(optimizer, "optim", optimizer)

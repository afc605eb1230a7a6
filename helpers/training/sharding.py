"""FSDP2: weights, gradients and optimizer state cut into shards, one for each rank.

With torch.distributed.fsdp.fully_shard a rank keeps only its shards: the weights of a unit are gathered before it
computes, and its gradients reduced to shards after. What only a sharded run needs is imported in functions: it takes
half as long as importing torch.
"""

from collections import Counter
from contextlib import contextmanager

import torch
from torch import nn

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


def shard(model, device, groups=(), *, keep_weights=False, offload=False, dtype=None) -> nn.Module:
    """Shard `model`, in place, over the ranks of the process group; its parameters are DTensors then.

    Args:
        groups: (replicas, ranks that share one) for a hybrid, or () for one replica over all ranks.
        keep_weights: whether gathered weights are kept from the forward to the backward pass.
        offload: whether shards stay in the memory of the CPU.
        dtype: what weights are gathered and computed in, if not their own; gradients are then reduced in fp32.

    Raises:
        ValueError: there is nothing to shard.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

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

"""FSDP2 (torch.distributed.fsdp.fully_shard), and the units that a model is sharded, recomputed or compiled by.

What only a sharded run needs is imported in functions: it takes half as long as importing torch.
"""

from collections import Counter
from contextlib import contextmanager

import torch
from torch import nn

from ..config import no_batch_norm
from . import sharded_checkpoint
from .strategies import Strategy

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


def local(tensor):
    """What this rank holds of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # only a DTensor has it


class FSDP(Strategy):
    """A rank keeps only its shards of weights, gradients and optimizer state.

    The weights of a unit are gathered before it computes, and its gradients are reduced to shards after.
    """

    sharded = True

    def wrap(self, model, gathered_in=None):
        """Shard `model`, in place; its parameters are DTensors then, and gradients are reduced in fp32.

        Raises:
            ValueError: there is nothing to shard, or BatchNorm is to compute in `gathered_in`.
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

        config, kind, groups = self.config, self.device.type, self.config.shard_groups
        if gathered_in and any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
            raise ValueError(no_batch_norm(type(model).__name__, config.precision))
        if not any(p.requires_grad for p in model.parameters()):
            raise ValueError(f"strategy 'fsdp' shards weights, and {type(model).__name__} has none to train")
        names = {"mesh_dim_names": ("replicas", "shards")} if groups else {}
        options = {
            "mesh": init_device_mesh(kind, groups or (torch.distributed.get_world_size(),), **names),
            "mp_policy": MixedPrecisionPolicy(gathered_in, torch.float32 if gathered_in else None),
            "offload_policy": CPUOffloadPolicy(pin_memory=kind == "cuda") if config.offload else OffloadPolicy(),
        }
        if config.shard == "grad_op":
            options["reshard_after_forward"] = False
        for module in (*units(model), model):
            fully_shard(module, **options)
            if kind == "cpu":  # gloo's average was a sum in some releases (pytorch issue 162338)
                module.set_force_sum_reduction_for_comms(True)
        return model

    @contextmanager
    def without_reduction(self, wrapped):
        wrapped.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            wrapped.set_requires_gradient_sync(True)

    def compiled_parts(self, model):
        return units(model)  # weights are gathered between them, which no graph can contain

    def after_evaluation(self, model):
        from torch.distributed.fsdp import FSDPModule

        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # some gathered weights stay after a forward pass that no backward pass follows

    def save(self, run, state):
        sharded_checkpoint.save(run, state)

    def load(self, run, state):
        if "folder" in state:
            sharded_checkpoint.load_sharded(run, state["folder"])
        else:
            sharded_checkpoint.load_full(run, state)

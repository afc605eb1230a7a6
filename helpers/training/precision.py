"""Levels of mixed precision by their known names, through torch.amp on whatever device.

The names O0 to O3 are those of NVIDIA's apex (https://nvidia.github.io/apex/amp.html); the method is
Micikevicius et al., "Mixed precision training" (arXiv:1710.03740): compute in a half format, keep
weights to be updated in fp32, and scale the loss so that small gradients survive fp16.
"""

from dataclasses import replace

import torch
from torch import nn

from .. import device as devices
from .levels import ALIASES, LEVELS, Level

NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


class MixedPrecision:
    """Everything about one rank's training that depends on the level; fp32 passes straight through.

    Casts `model` in place. Give `parameters` to the optimizer, wrap the model (DDP, DataParallel)
    after this, and let `forward`, `backward`, `step` and `zero_grad` take the place of your own.

    Args:
        level: a Level, or its name.
        sharded: whether the model will be given to FSDP, which casts fp32 weights to `gathered_in` by itself, so that
            a level with masters neither casts nor copies here; call `take` after it.
        init_scale, growth_interval: of the GradScaler where the level has one.

    Attributes:
        parameters: what the optimizer must update: the model's own, or the fp32 masters.
        scaler: the torch.amp.GradScaler; disabled where the loss is not scaled.
        skipped: updates left out so far because a gradient was not finite.
        gathered_in: the dtype of weights that FSDP gathers, or None for their own.
    """

    def __init__(self, level, model, device, init_scale=2.0**16, growth_interval=2000, sharded=False):
        self.level = level if isinstance(level, Level) else LEVELS[level]
        self.gathered_in = None
        if sharded and self.level.masters:
            self.gathered_in = getattr(torch, self.level.dtype)
            self.level = replace(self.level, autocast=False, half_weights=False, masters=False)
        self.device, self.dtype = torch.device(device), getattr(torch, self.level.dtype)
        self.scaler = torch.amp.GradScaler(
            self.device.type, init_scale, growth_interval=growth_interval, enabled=self.level.scaled
        )
        self.skipped = 0
        self._pairs = []  # (the model's weight, its master)
        own = list(model.parameters())
        exact = {id(p): p.detach().clone() for p in own} if self.level.masters else {}
        if self.level.half_weights:
            self._halve(model)
        self.parameters = [self._master_of(p, exact) for p in own]
        self.input_dtype = next((p.dtype for p in own if p.is_floating_point()), torch.get_default_dtype())

    def take(self, model) -> None:
        """Go on with the parameters that FSDP has put in the place of the model's own."""
        self.parameters = list(model.parameters())

    def _halve(self, model):
        for module in model.modules():
            if self.level.fp32_norms and isinstance(module, NORMS):
                continue
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                if tensor.is_floating_point():
                    tensor.data = tensor.data.to(self.dtype)

    def _master_of(self, weight, exact):
        """What the optimizer updates in place of `weight`: the value before rounding, where masters are kept."""
        if not self.level.masters or weight.dtype != self.dtype or not weight.requires_grad:
            return weight
        master = nn.Parameter(exact[id(weight)].float())
        self._pairs.append((weight, master))
        return master

    # -- a step ---------------------------------------------------------------------------

    def autocast(self):
        """The context for a forward pass."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.level.autocast)

    def forward(self, model, inputs):
        """`model` of `inputs` [N, …] at this level; half outputs are returned in fp32, as a loss wants them."""
        if torch.is_tensor(inputs) and inputs.is_floating_point():
            inputs = inputs.to(self.input_dtype)
        with self.autocast():
            outputs = model(inputs)
        half = torch.is_tensor(outputs) and outputs.dtype in (torch.float16, torch.bfloat16)
        return outputs.float() if half else outputs

    def backward(self, loss):
        """Backward of the scaled loss; call it once for each micro-batch."""
        self.scaler.scale(loss).backward()

    def step(self, optimizer, clip_norm=None) -> bool:
        """Update the weights; False if the scaler left the update out because of an overflow.

        Gradients are divided by the scale before they are clipped to the norm `clip_norm`, and the
        scale changes once here, at the end of the global step, so that all micro-batches of a step
        have the same.
        """
        for weight, master in self._pairs:
            master.grad = None if weight.grad is None else weight.grad.to(master.dtype)
        if clip_norm is not None:
            self.scaler.unscale_(optimizer)
            norm = nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
            # torch 2.8 adds its 1e-6 to each shard's part of the norm, so it gets the whole norm
            nn.utils.clip_grads_with_norm_(self.parameters, clip_norm, getattr(norm, "full_tensor", lambda: norm)())
        before = self.scaler.get_scale()
        self.scaler.step(optimizer)
        self.scaler.update()
        done = self.scaler.get_scale() >= before
        self.skipped += not done
        with torch.no_grad():
            for weight, master in self._pairs:
                weight.copy_(master)
        return done

    def zero_grad(self):
        """Forget the gradients of the model's weights and of the masters."""
        for p in (*self.parameters, *(weight for weight, _ in self._pairs)):
            p.grad = None

    # -- checkpoints ----------------------------------------------------------------------

    def state_dict(self, model) -> dict:
        """{"model": weights, in fp32 where there are masters; "scaler": …; "skipped": …}."""
        masters = {id(weight): master.detach() for weight, master in self._pairs}
        names = {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)}
        weights = {name: masters.get(names.get(name), value) for name, value in model.state_dict().items()}
        return {"model": weights, "scaler": self.scaler.state_dict(), "skipped": self.skipped}

    @torch.no_grad()
    def load_state_dict(self, model, state) -> None:
        """Go on from what `state_dict` of the same level returned."""
        model.load_state_dict(state["model"])  # rounds to half where the model has half weights
        names = {id(p): name for name, p in model.named_parameters()}
        for weight, master in self._pairs:
            master.copy_(state["model"][names[id(weight)]])
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(state["scaler"])
        self.skipped = state["skipped"]


def advice(name, kind) -> str:
    """A sentence if level `name` will be slower than fp32 on devices of `kind`, from a measurement; else ""."""
    dtype = LEVELS[ALIASES[name]].dtype
    if dtype == "float32":  # nothing to compare, so nothing to measure
        return ""
    speeds = devices.dtypes(kind)
    speed = speeds.get(dtype, 0)
    if speed >= 1:
        return ""
    faster = [other for other, ratio in speeds.items() if ratio > 1]
    instead = f"{faster[0]} is faster here" if faster else "no half format is faster here"
    return (
        f"{name} will be slower than fp32 on this device: a convolution, forward and backward, ran at "
        f"{speed:.2g} times the speed in {dtype} when it was tried just now; {instead}"
    )

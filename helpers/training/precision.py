"""Mixed precision through torch.amp, on whatever device; helpers.config.PRECISIONS describes each by name.

The method is Micikevicius et al., "Mixed precision training" (arXiv:1710.03740): compute in a half format, keep weights
to be updated in fp32, and scale the loss so that small gradients survive fp16.
"""

from contextlib import nullcontext
from functools import cached_property
from pkgutil import resolve_name

import torch
from torch import nn

from .. import config
from .. import device as devices
from ..compiler.copies import replaced
from ..language import _

NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def make(name, model, device, **options) -> "MixedPrecision":
    """The precision with this name or alias, at work on `model`."""
    return resolve_name(config.precision_of(name).trains)(name, model, device, **options)


class MixedPrecision:
    """Everything about one rank's training that depends on the precision; fp32 passes straight through.

    Casts `model` in place. Wrap the model (DDP, DataParallel, FSDP) after this, give `parameters` to the optimizer, and
    let `forward`, `backward`, `step` and `zero_grad` take the place of your own.

    Args:
        precision: a helpers.config.Precision, or its name.
        sharded: whether the model will be given to FSDP, which casts fp32 weights to `gathered_in` by itself: masters
            are then its shards, and nothing is cast or copied here.
        init_scale, growth_interval: of the GradScaler if the loss is scaled.

    Attributes:
        scaler: the torch.amp.GradScaler; disabled where the loss is not scaled.
        skipped: updates left out so far because a gradient was not finite.
        gathered_in: the dtype of weights that FSDP gathers, or None for their own.
    """

    def __init__(self, precision, model, device, init_scale=2.0**16, growth_interval=2000, sharded=False):
        row = config.precision_of(precision) if isinstance(precision, str) else precision
        self.model, self.device, self.dtype = model, torch.device(device), getattr(torch, row.dtype)
        self.gathered_in = self.dtype if sharded and row.masters else None
        casts = row.half_weights and not self.gathered_in
        self._autocast = row.autocast and not self.gathered_in
        options = {"growth_interval": growth_interval, "enabled": row.scaled}
        self.scaler, self.skipped = torch.amp.GradScaler(self.device.type, init_scale, **options), 0
        own = list(model.parameters())
        exact = {p: p.detach().clone() for p in own} if casts and row.masters else {}
        for module in model.modules() if casts else ():
            if not (row.masters and isinstance(module, NORMS)):
                for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                    if tensor.is_floating_point():
                        tensor.data = tensor.data.to(self.dtype)
        self._masters = {  # of each cast weight the value before rounding
            p: nn.Parameter(value.float()) for p, value in exact.items() if p.dtype == self.dtype and p.requires_grad
        }
        self.input_dtype = next((p.dtype for p in own if p.is_floating_point()), torch.get_default_dtype())

    @cached_property
    def parameters(self) -> list:
        """What the optimizer must update: the model's own, as they are after wrapping it, or their fp32 masters."""
        return [self._masters.get(p, p) for p in self.model.parameters()]

    # -- a step ---------------------------------------------------------------------------

    def autocast(self):
        """The context for a forward pass."""
        return torch.autocast(self.device.type, self.dtype) if self._autocast else nullcontext()

    def forward(self, model, inputs):
        """`model` of `inputs` [N, …] at this precision; half outputs are returned in fp32, as a loss wants them."""
        if torch.is_tensor(inputs) and inputs.is_floating_point():
            inputs = inputs.to(self.input_dtype)
        with self.autocast():
            outputs = model(inputs)
        full = lambda tensor: tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor  # noqa: E731
        return replaced(outputs, full) if self.dtype != torch.float32 else outputs

    def backward(self, loss):
        """Backward of the scaled loss; call it once for each micro-batch."""
        self.scaler.scale(loss).backward()

    def step(self, optimizer, clip_norm=None) -> bool:
        """Update the weights; False if the scaler left the update out because of an overflow.

        Gradients are divided by the scale before they are clipped to the norm `clip_norm`. The scale changes here
        only: all micro-batches of a step have the same.
        """
        for weight, master in self._masters.items():
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
            for weight, master in self._masters.items():
                weight.copy_(master)
        return done

    def zero_grad(self):
        """Forget the gradients of the model's weights and of the masters."""
        for p in (*self.parameters, *self._masters):
            p.grad = None

    # -- checkpoints ----------------------------------------------------------------------

    def weights(self) -> dict:
        """The model's state, in fp32 where there are masters."""
        named = self.model.named_parameters(remove_duplicate=False)
        masters = {name: self._masters[p].detach() for name, p in named if p in self._masters}
        return {**self.model.state_dict(), **masters}

    @torch.no_grad()
    def load_weights(self, state) -> None:
        """Go on from what `weights` of the same precision returned."""
        self.model.load_state_dict(state)  # rounds to half where the model has half weights
        for name, p in self.model.named_parameters():
            if p in self._masters:
                self._masters[p].copy_(state[name])


def advice(name, kind) -> dict | None:
    """What speaks against a precision on devices of `kind`, from a measurement; None if nothing does.

    Returns:
        {"precision", "dtype", "conv_ratio": speed of a convolution in it relative to float32, "faster": a half format
        that is faster than float32, or None}
    """
    dtype = config.precision_of(name).dtype
    if dtype == "float32":  # nothing to compare, so nothing to measure
        return None
    speeds = devices.dtypes(kind)
    ratio, faster = speeds.get(dtype, 0), next((other for other, ratio in speeds.items() if ratio > 1), None)
    return {"precision": name, "dtype": dtype, "conv_ratio": round(ratio, 4), "faster": faster} if ratio < 1 else None


def advice_text(found) -> str:
    """A sentence for what `advice` has found, in the reader's language; "" for None."""
    if not found:
        return ""
    slow = _(
        "{precision} will be slower than fp32 on this device: a convolution, forward and backward, ran at "
        "{conv_ratio:.2g} times the speed in {dtype} when it was tried just now"
    ).format(**found)
    ending = _("{slow}; {faster} is faster here") if found["faster"] else _("{slow}; no half format is faster here")
    return ending.format(slow=slow, faster=found["faster"])

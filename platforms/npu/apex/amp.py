"""Mixed precision with the interface of `apex.amp`: levels O0 to O3 and scaled losses.

    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", loss_scale="dynamic")
    …
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()

The interface is that of NVIDIA's apex for one model, one optimizer and one loss; the levels are the precisions of
helpers.training.precision. What apex lets pass passes here, too: any number is a fixed scale, -1 as well; at a fixed
scale no overflow is looked for; a backward outside `scale_loss` never reaches the masters, so half weights stay as they
are. Where it differs: O1 and O2 run the model under torch.autocast, no function of torch is patched, and half outputs
come out in float32; O2 leaves all norm layers in float32; masters begin as the weights before rounding, and checkpoints
at O2 hold them, so a resumed run goes on bitwise.
"""

import contextlib
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_map

from helpers.training.precision import MixedPrecision

__all__ = ["initialize", "load_state_dict", "master_params", "scale_loss", "state_dict"]

LEVELS = {  # what amp prints of a level, and its loss scale
    "O0": ("all in float32", 1.0),
    "O1": ("weights in float32, operations in float16 where that is safe", "dynamic"),
    "O2": ("weights in float16, norm layers in float32, float32 master weights in the optimizer", "dynamic"),
    "O3": ("all in float16", 1.0),
}
# Dynamic scaling of Micikevicius et al. (arXiv:1710.03740) with the constants of apex.
INITIAL, LARGEST, WINDOW = 2.0**16, 2.0**24, 2000  # the scale doubles after WINDOW steps without an overflow
PARALLEL = (nn.parallel.DistributedDataParallel, nn.DataParallel)

_latest = None  # the Session of the latest `initialize`


def initialize(model, optimizer=None, *, opt_level="O1", loss_scale=None, verbosity=1):
    """Bring a model and its optimizer to a level, in place; call it before DDP or torch.compile.

    Args:
        model: in float32, on its device.
        optimizer: of torch.optim, or None (for inference).
        opt_level: "O0" float32; "O1" operations choose their format; "O2" half weights with float32 norm layers and
            master weights; "O3" all in half.
        loss_scale: in place of the level's own: a number, a string of one, or "dynamic".
        verbosity: 0 to print nothing; only rank 0 prints.

    Returns:
        `model`, and `optimizer` beside it unless None.

    Raises:
        ValueError: an argument has a value that is not allowed, or the model is not in float32.
        TypeError: `model` or `optimizer` is something else, such as a list.
        RuntimeError: the model is wrapped or compiled, or something was initialized before.
    """
    global _latest
    if opt_level not in LEVELS:
        hint = "; it begins with the letter O, not with a zero" if str(opt_level).startswith("0") else ""
        raise ValueError(f"opt_level={opt_level!r} is not a level; choose one of 'O0', 'O1', 'O2', 'O3'{hint}")
    scale = LEVELS[opt_level][1] if loss_scale is None else loss_scale
    _check(model, optimizer)
    _latest = Session(model, optimizer, opt_level, scale if scale == "dynamic" else float(scale), verbosity)
    return model if optimizer is None else (model, optimizer)


def _check(model, optimizer):
    """Refuse what cannot be initialized, before anything has changed."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"amp.initialize takes one torch.nn.Module, not {model!r}")
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"amp.initialize takes one optimizer of torch.optim, not {optimizer!r}")
    if hasattr(optimizer, "_amp") or any(isinstance(module, _Casting) for module in model.modules()):
        raise RuntimeError(
            "this model or optimizer went through amp.initialize before; build both again (in a notebook: run their "
            "cell again)"
        )
    if hasattr(model, "_orig_mod") or any(isinstance(module, PARALLEL) for module in model.modules()):
        raise RuntimeError(
            "the model is wrapped or compiled already, and amp changes what the wrapper has looked at; call "
            "amp.initialize first, then wrap the model that it returns"
        )
    for name, p in model.named_parameters():
        if p.is_floating_point() and p.dtype != torch.float32:
            raise ValueError(
                f"parameter {name!r} is {p.dtype}, and amp.initialize starts from float32 at every level; build the "
                "model without .half() or .double()"
            )


class _Casting:
    """Goes before the class of a model: the model computes at its precision, and so do copies of it."""

    def forward(self, *args, **kwargs):
        def given(value):
            fits = torch.is_tensor(value) and value.is_floating_point()
            return value.to(self._amp_precision.input_dtype) if fits else value

        def exact(value):  # as a loss wants it
            half = torch.is_tensor(value) and value.dtype in (torch.float16, torch.bfloat16)
            return value.float() if half else value

        args, kwargs = tree_map(given, (args, kwargs))
        with self._amp_precision.autocast():
            return tree_map(exact, super().forward(*args, **kwargs))


class Session:
    """What one `initialize` has set up: a model at a precision, an optimizer that steps on finite gradients, a scale.

    It works through the optimizer's own step hooks, so that learning-rate schedulers, made before or after, see the
    optimizer that they know. A step is skipped by hiding the gradients from it.

    Attributes:
        masters: {half weight: the float32 Parameter that the optimizer updates in its place}.
        scale, dynamic, unskipped: the loss scale, whether it changes, and steps since its last change.
        arrived: whether gradients have come through `scale_loss` since the last step.
    """

    def __init__(self, model, optimizer, level, scale, verbosity):
        self.optimizer, self.verbosity = optimizer, verbosity
        self.dynamic = scale == "dynamic"
        self.scale, self.unskipped, self.arrived, self._hidden = INITIAL if self.dynamic else scale, 0, False, {}
        device = next((p.device for p in model.parameters()), "cpu")
        precision = MixedPrecision(level, model, device)
        pairs = zip(model.parameters(), precision.parameters, strict=True)
        self.masters = {weight: master for weight, master in pairs if master is not weight}
        self.scaled = bool(self.masters) or self.dynamic or self.scale != 1  # else it is an ordinary backward
        cls = type(model)
        named = {"_amp_precision": precision, "__module__": cls.__module__, "__doc__": cls.__doc__}
        model.__class__ = type(cls.__name__, (_Casting, cls), named)
        self._keep_in_checkpoints(model)
        if optimizer is not None:
            self._take_over(optimizer)
        if self.masters:
            self._share_with_ddp(model)
        self.say(f"{level} · {LEVELS[level][0]}; loss scale {'dynamic' if self.dynamic else f'{self.scale:g}'}")

    def _take_over(self, optimizer):
        state = optimizer.state_dict()
        for group in optimizer.param_groups:
            group["params"] = [self.masters.get(p, p) for p in group["params"]]
        optimizer.load_state_dict(state)  # of a checkpoint that was loaded before
        optimizer._amp = self
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)
        zero_grad = optimizer.zero_grad

        def zero_all(set_to_none=True):
            zero_grad(set_to_none)
            for weight in self.masters:
                weight.grad = None

        optimizer.zero_grad = zero_all

    def say(self, text):
        """Print a line, on rank 0 only."""
        if self.verbosity and not (dist.is_available() and dist.is_initialized() and dist.get_rank()):
            print(f"amp: {text}", flush=True)

    # -- master weights -------------------------------------------------------------------

    def _share_with_ddp(self, model):
        """Let all ranks of DDP begin with the masters of rank 0, as with its weights: at the first training forward."""

        @torch.compiler.disable
        def share(*_):
            ddp = nn.parallel.DistributedDataParallel._get_active_ddp_module()
            if ddp is not None and torch.is_grad_enabled():
                handle.remove()
                dist._broadcast_coalesced(ddp.process_group, [it.detach() for it in self.masters.values()], 1 << 28, 0)

        handle = model.register_forward_pre_hook(share)

    @torch.no_grad()
    def _pull(self):
        """Let masters take over the elements that DDP, an initialisation or a clamp has written into the weights."""
        for weight, master in self.masters.items():
            master.copy_(torch.where(weight == master.to(weight.dtype), master, weight.float()))

    @torch.no_grad()
    def _push(self):
        """Round the masters into the weights."""
        for weight, master in self.masters.items():
            weight.copy_(master)

    def _keep_in_checkpoints(self, model):
        """Let `state_dict` of the model give float32, that of the masters, and `load_state_dict` set them."""

        def masters_of(module, prefix):
            named = module.named_parameters(remove_duplicate=False)
            return {prefix + name: self.masters[p] for name, p in named if p in self.masters}

        def save(module, state, prefix, _):
            self._pull()
            for name, value in state.items():
                if name.startswith(prefix) and torch.is_tensor(value) and value.dtype == torch.float16:
                    state[name] = value.float()
            state.update({name: master.detach() for name, master in masters_of(module, prefix).items()})

        @torch.no_grad()
        def load(module, state, prefix, *_):
            for name, master in masters_of(module, prefix).items():
                if name in state and state[name].shape == master.shape:
                    master.copy_(state[name])

        model.register_state_dict_post_hook(save)
        model.register_load_state_dict_pre_hook(load)

    # -- a step ---------------------------------------------------------------------------

    def _parameters(self):
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def rescale(self, factor):
        """Multiply the gradients that are there, but those of half weights, which stay scaled until the step."""
        masters = set(self.masters.values())
        for p in self._parameters():
            if p.grad is not None and p not in masters:
                p.grad.mul_(factor)

    def unscale(self):
        """After a backward: what the optimizer steps on, without the scale."""
        self.rescale(1 / self.scale)
        for weight, master in self.masters.items():
            if weight.grad is not None:
                master.grad = weight.grad.float() * (1 / self.scale)

    def _before_step(self, optimizer, args, kwargs):
        self._pull()
        if self.arrived and self._update_scale():
            self._hidden = {p: p.grad for p in self._parameters()}
            for p in self._hidden:
                p.grad = None

    def _update_scale(self):
        """Adapt a dynamic scale to the gradients of this step; True if one is not finite."""
        gradients = [p.grad for p in self._parameters() if p.grad is not None]
        overflow = self.dynamic and not all(gradient.isfinite().all() for gradient in gradients)
        self.unskipped = 0 if overflow else self.unskipped + 1
        if overflow:
            self.scale /= 2
            self.say(
                f"gradients overflowed, so this optimizer.step() is skipped; the loss scale falls to {self.scale:g}"
            )
        elif self.dynamic and self.unskipped == WINDOW:
            self.scale, self.unskipped = min(self.scale * 2, LARGEST), 0
        return overflow

    def _after_step(self, optimizer, args, kwargs):
        for p, gradient in self._hidden.items():
            p.grad = gradient
        self._push()
        for weight, master in self.masters.items():
            weight.grad = master.grad = None  # model.zero_grad() does not know the masters
        self.arrived, self._hidden = False, {}


@contextlib.contextmanager
def scale_loss(loss, optimizer):
    """Context in which to call `backward` of the scaled loss that it yields.

    At its end the gradients of the optimizer's parameters, and no others, are divided by the scale. After an overflow
    at a dynamic scale the next `step` does nothing but halve it. Clip gradients after it, those of `master_params`.

    Raises:
        RuntimeError: `initialize` was not called with this optimizer.
    """
    session = getattr(optimizer, "_amp", None)
    if session is None:
        raise RuntimeError(
            "amp.scale_loss got an optimizer that amp.initialize has not seen; call `model, optimizer = "
            "amp.initialize(model, optimizer, opt_level=…)` once, before the training loop"
        )
    if not torch.is_tensor(loss):
        raise TypeError(f"amp.scale_loss scales the tensor that backward starts from, not {loss!r} (from .item()?)")
    if not session.scaled:
        yield loss.float()
        return
    session.rescale(session.scale)  # gradients of earlier passes, so that this one's add up with them
    try:
        yield loss.float() * session.scale
    finally:
        session.unscale()
    session.arrived = True


def master_params(optimizer):
    """Iterate over the parameters that `optimizer` updates: the float32 masters where there are some."""
    for group in optimizer.param_groups:
        yield from group["params"]


def state_dict() -> dict:
    """The loss scale, under the keys of apex: {"loss_scaler0": {"loss_scale": …, "unskipped": …}}; {} without one."""
    return {} if _latest is None else {"loss_scaler0": {"loss_scale": _latest.scale, "unskipped": _latest.unskipped}}


def load_state_dict(state_dict) -> None:
    """Go on with the loss scale that `state_dict()` returned; call it after `initialize`, at any level.

    A scale that was fixed in `initialize` stays. Warns (UserWarning) where there is none in `state_dict`.

    Raises:
        RuntimeError: `initialize` was not called.
    """
    if _latest is None:
        raise RuntimeError("amp.load_state_dict was called before amp.initialize, which makes the scale; swap the two")
    saved = state_dict.get("loss_scaler0")
    if saved is None:
        warnings.warn("there is no loss scale in it: was the checkpoint saved without amp?", stacklevel=2)
        return
    _latest.unskipped = saved["unskipped"]
    if _latest.dynamic:
        _latest.scale = saved["loss_scale"]
    elif saved["loss_scale"] != _latest.scale:
        _latest.say(f"the checkpoint's loss scale is {saved['loss_scale']:g}; it stays fixed at {_latest.scale:g}")

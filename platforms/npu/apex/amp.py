"""Mixed precision with the interface of `apex.amp`: levels O0 to O3 and scaled losses.

    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", loss_scale="dynamic")
    …
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()

The interface is that of NVIDIA's apex (https://nvidia.github.io/apex/amp.html and advanced.html).
Where it differs: O1 is torch.autocast around the model's forward, whose half outputs come out in
float32; no function of torch is patched but F.binary_cross_entropy; checkpoints at O2 hold the master
weights, so a resumed run goes on bitwise; a step is skipped at a fixed loss scale too.
"""

import contextlib
import warnings

import torch
from torch import nn
from torch.optim import Optimizer

from . import casting, functions, levels
from .casting import disable_casts
from .functions import (
    float_function,
    half_function,
    promote_function,
    register_float_function,
    register_half_function,
    register_promote_function,
)
from .session import Session, State
from .stepper import Stepper, keep_in_checkpoints

__all__ = [
    "disable_casts",
    "float_function",
    "half_function",
    "initialize",
    "load_state_dict",
    "master_params",
    "promote_function",
    "register_float_function",
    "register_half_function",
    "register_promote_function",
    "scale_loss",
    "state_dict",
]

_amp_state = State()


def initialize(
    models,
    optimizers=None,
    enabled=True,
    opt_level="O1",
    cast_model_type=None,
    patch_torch_functions=None,
    keep_batchnorm_fp32=None,
    master_weights=None,
    loss_scale=None,
    cast_model_outputs=None,
    num_losses=1,
    verbosity=1,
    min_loss_scale=None,
    max_loss_scale=2.0**24,
):
    """Bring models and optimizers to a level, in place; call it before DDP or torch.compile.

    A second call, for other models and optimizers, is about those: `state_dict` and
    `load_state_dict` speak of the latest call, the earlier ones' models go on working at their level.

    Args:
        models: a model in float32 on its device, or a list of them.
        optimizers: an optimizer of torch.optim (or a LARC around one), a list of them, or None (for inference).
        enabled: with False nothing is changed or checked and a scaled loss is the loss.
        opt_level: "O0" float32; "O1" operations choose their format; "O2" half weights with float32
            batch norm and master weights; "O3" all in half.
        cast_model_type, patch_torch_functions, keep_batchnorm_fp32, master_weights, loss_scale: in
            place of the level's own (see levels.Level); a loss scale is a number, a string of one,
            or "dynamic", which -1 means too.
        cast_model_outputs: dtype of the models' outputs; by default half ones become float32.
        num_losses: how many losses have a scale of their own, see `scale_loss`.
        verbosity: 0 to print nothing; only rank 0 prints.
        min_loss_scale, max_loss_scale: limits of a dynamic scale.

    Returns:
        `models`, and `optimizers` beside it unless None; a list where there was one.

    Raises:
        ValueError: an argument has a value that is not allowed, or a model is not in float32.
        TypeError: something is no model or no optimizer.
        RuntimeError: a model is wrapped or compiled, or something was initialized before.
    """
    if not enabled:
        _amp_state.session = Session(verbosity=verbosity)
        casting.set_outside(None)
        return models if optimizers is None else (models, optimizers)

    level = levels.chosen(
        opt_level,
        cast_model_type=cast_model_type,
        patch_torch_functions=patch_torch_functions,
        keep_batchnorm_fp32=keep_batchnorm_fp32,
        master_weights=master_weights,
        loss_scale=loss_scale,
    )
    levels.check_limits(num_losses, min_loss_scale, max_loss_scale)
    nets = levels.listed(models, nn.Module, "models")
    given = [] if optimizers is None else levels.listed(optimizers, Optimizer, "optimizers")
    for model in nets:
        levels.check_model(model, level)
    for optimizer in given:
        if hasattr(optimizer, "_amp_stepper"):
            raise RuntimeError(
                "this optimizer went through amp.initialize before; make a new one for the model (in a notebook: run "
                "its cell again)"
            )

    earlier, session = _amp_state.session, Session(level, num_losses, (min_loss_scale, max_loss_scale), verbosity)
    _amp_state.session = session
    exact = {}
    all_casts = [_to_level(model, level, cast_model_outputs, exact) for model in nets]
    for optimizer in given:
        Stepper(optimizer, session, nets, exact)
        if optimizer.state and level.cast_model_type:  # gathered before; now in the format of what it updates
            optimizer.load_state_dict(optimizer.state_dict())
    casting.set_outside(all_casts[0] if level.patch_torch_functions and all_casts else None)
    if level.patch_torch_functions:
        functions.ban()
    session.say(str(level))
    if earlier and earlier.level:
        session.say("there was an earlier amp.initialize; amp.state_dict() is about the models given now")
    return models if optimizers is None else (models, optimizers)


def _to_level(model, level, outputs, exact):
    """Cast `model`; the Casts of its forward. Its weights before go into `exact`."""
    if level.cast_model_type:
        exact |= casting.cast_weights(model, level.cast_model_type, level.keep_batchnorm_fp32)
        keep_in_checkpoints(model)
    half = torch.float16 if level.patch_torch_functions else None
    kind = next((p.device.type for p in model.parameters()), "cpu")
    casts = casting.Casts(kind, half, level.cast_model_type, outputs)
    casting.cast_forward(model, casts)
    return casts


@contextlib.contextmanager
def scale_loss(loss, optimizers, loss_id=0, model=None, delay_unscale=False, delay_overflow_check=False):
    """Context in which to call `backward` of the scaled loss that it yields.

    At its end the gradients of the optimizers' parameters, and no others, are divided by the scale
    and looked at: after an overflow the next `step` of these optimizers does nothing, and a dynamic
    scale is halved. Clip gradients after it, those of `master_params`.

    Args:
        loss: tensor, usually a scalar.
        optimizers: the optimizer, or list of them, that this backward makes gradients for.
        loss_id: number of the loss, below `num_losses` of `initialize`; each has its own scale.
        model: not used; apex has it.
        delay_unscale: leave the gradients scaled, for accumulation over several passes; the last pass
            before `step` must come without. Passes in DDP's `no_sync` do so by themselves, since the
            ranks could not agree on what they have not exchanged.
        delay_overflow_check: look at the gradients at the next pass without it, or at `step`, which
            waits for the device once less.

    Raises:
        RuntimeError: `initialize` was not called, or not with this optimizer; scaled gradients of
            another scale are waiting.
        ValueError: there is no such loss, or no optimizer.
        FloatingPointError: gradients overflow at every scale.
    """
    latest = _amp_state.session
    if latest is None:
        raise RuntimeError(
            "amp.scale_loss was called before amp.initialize; call "
            "`model, optimizer = amp.initialize(model, optimizer, opt_level=…)` once, before the training loop"
        )
    given = optimizers if isinstance(optimizers, (list, tuple)) else [optimizers]
    if not latest.level and not any(hasattr(optimizer, "_amp_stepper") for optimizer in given):
        yield loss
        return
    steppers = levels.steppers_of(optimizers)
    session = steppers[0].session
    if any(stepper.session is not session for stepper in steppers):
        raise RuntimeError("these optimizers come from two calls of amp.initialize; pass them to one call together")
    scaler = session.scaler(loss_id)
    if not torch.is_tensor(loss):
        raise TypeError(f"amp.scale_loss scales the tensor that backward starts from, not {loss!r} (from .item()?)")
    if not session.level.master_weights and not scaler.dynamic and scaler.loss_scale() == 1:  # an ordinary backward
        yield loss.float()
        return

    scale, opened = scaler.loss_scale(), []
    try:
        for stepper in steppers:
            stepper.open(scale)
            opened.append(stepper)
        yield loss.float() * scale
    except BaseException:
        for stepper in opened:
            stepper.abandon()
        raise
    if delay_unscale or any(stepper.local() for stepper in steppers):
        for stepper in steppers:
            stepper.hold(scale)
        return
    for stepper in steppers:
        stepper.close(scaler)
    if not delay_overflow_check:
        session.settle(loss=loss)


def master_params(optimizer):
    """Iterate over the parameters that `optimizer` updates: the float32 masters where there are some."""
    for group in optimizer.param_groups:
        yield from group["params"]


def state_dict(destination=None) -> dict:
    """The loss scales: {"loss_scaler0": {"loss_scale": …, "unskipped": …}, …}, put into `destination` if given."""
    destination = {} if destination is None else destination
    for number, scaler in enumerate(_amp_state.loss_scalers):
        destination[f"loss_scaler{number}"] = scaler.state_dict()
    return destination


def load_state_dict(state_dict):
    """Go on with the loss scales that `state_dict()` returned; call it after `initialize`, at any level.

    A scale that was fixed in `initialize` stays. Warns (UserWarning) where scales are left over or missing.

    Raises:
        RuntimeError: `initialize` was not called, or this is not what amp.state_dict() returned.
    """
    if _amp_state.session is None:
        raise RuntimeError("amp.load_state_dict was called before amp.initialize, which makes the scales; swap the two")
    unknown = [key for key in state_dict if not str(key).startswith("loss_scaler")]
    if unknown:
        raise RuntimeError(
            f"amp.load_state_dict found {unknown} beside the loss scales; give it what amp.state_dict() returned, "
            'usually checkpoint["amp"]'
        )
    scalers = _amp_state.loss_scalers
    if len(state_dict) != len(scalers):
        warnings.warn(
            f"the checkpoint has {len(state_dict)} loss scale(s), amp.initialize made {len(scalers)}: those they have "
            "in common are loaded. Is num_losses (or enabled) another one than when it was saved?",
            stacklevel=2,
        )
    for number, scaler in enumerate(scalers):
        saved = state_dict.get(f"loss_scaler{number}")
        if saved is None:
            continue
        scaler.load_state_dict(saved)
        if scaler.loss_scale() != saved["loss_scale"]:
            _amp_state.session.say(
                f"loss scale {saved['loss_scale']:g} of the checkpoint is outside what amp.initialize was given; "
                f"it is {scaler.loss_scale():g}"
            )


def _reset():
    """Forget the latest session and put back registered functions; models and optimizers stay as they are."""
    _amp_state.session = None
    casting.set_outside(None)
    functions.restore()

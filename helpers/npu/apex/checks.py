"""What `initialize` refuses, before it has changed anything."""

import torch
from torch import nn
from torch.optim import Optimizer

PARALLEL = (nn.parallel.DistributedDataParallel, nn.DataParallel)


def listed(given, kind, what) -> list:
    """`given`, one `kind` or a list or tuple of them, as a list.

    Raises:
        TypeError: it is neither.
        ValueError: one is in it twice.
    """
    items = list(given) if isinstance(given, (list, tuple)) else [given]
    for item in items:
        if not isinstance(item, kind):
            raise TypeError(f"{what} must be a {kind.__module__}.{kind.__name__} or a list of them, not {item!r}")
    if len({id(item) for item in items}) < len(items):
        raise ValueError(f"one of the {what} is in the list twice")
    return items


def check_model(model, level):
    """Refuse a model that cannot be brought to `level`.

    Raises:
        RuntimeError: amp.initialize comes too late for it: it is wrapped, compiled or initialized.
        ValueError: its parameters are not what amp.initialize starts from.
    """
    for module in model.modules():
        if isinstance(module, PARALLEL):
            raise RuntimeError(
                f"the model is wrapped in {type(module).__name__} already, and amp changes what that has looked at; "
                "call amp.initialize first and wrap the model that it returns"
            )
        if hasattr(module, "_amp_casts"):
            raise RuntimeError(
                "this model went through amp.initialize before; build model and optimizer again (in a notebook: run "
                "their cell again), or go on with the model that the first call returned"
            )
    if isinstance(model, torch.jit.ScriptModule) or hasattr(model, "_orig_mod"):
        raise RuntimeError("the model is compiled already; call amp.initialize first and compile what it returns")
    casts = level.cast_model_type not in (None, torch.float32)
    for name, p in model.named_parameters():
        if p.is_floating_point() and p.dtype != torch.float32:
            raise ValueError(
                f"parameter {name!r} is {p.dtype}, amp.initialize starts from float32 at every level; build the "
                "model without .half() or .double(), the level does the casting"
            )
        if casts and p.layout != torch.strided:
            raise ValueError(f"parameter {name!r} is sparse, which cannot be cast to half; choose 'O1' or 'O0'")
    for name, module in model.named_modules():
        if casts and getattr(module, "sparse", False) is True:
            raise ValueError(
                f"module {name!r} makes sparse gradients, which cannot be in half; choose 'O1', or give it sparse=False"
            )
    kinds = {p.device.type for p in model.parameters()}
    if len(kinds) > 1:
        raise ValueError(f"parameters are on {' and '.join(sorted(kinds))}; move the whole model to one of them first")


def check_optimizer(optimizer):
    """Refuse an optimizer that went through amp.initialize before (RuntimeError)."""
    if hasattr(optimizer, "_amp_stepper"):
        raise RuntimeError(
            "this optimizer went through amp.initialize before; make a new one for the model (in a notebook: run its "
            "cell again)"
        )


def check_limits(num_losses, minimum, maximum):
    """Refuse a number of losses below 1, and limits of the scale that exclude each other (ValueError)."""
    if isinstance(num_losses, bool) or not isinstance(num_losses, int) or num_losses < 1:
        raise ValueError(f"num_losses={num_losses!r} is not allowed; give the number of losses, 1 or more")
    if not 0 <= (minimum or 0) <= maximum or maximum == 0:
        raise ValueError(
            f"min_loss_scale={minimum} and max_loss_scale={maximum} leave no loss scale; give positive numbers, the "
            "minimum below the maximum"
        )


def device_kind(model) -> str:
    """Device type of the model's parameters, "cpu" for a model without any."""
    return next((p.device.type for p in model.parameters()), "cpu")


def steppers_of(optimizers) -> list:
    """The Steppers of `optimizers` (one, or a list).

    Raises:
        TypeError: something is no optimizer.
        ValueError: there is none.
        RuntimeError: one is not known to amp.
    """
    if optimizers is None or isinstance(optimizers, (list, tuple)) and not optimizers:
        raise ValueError("amp.scale_loss needs the optimizer(s) whose gradients this backward makes; there was none")
    found = [getattr(optimizer, "_amp_stepper", None) for optimizer in listed(optimizers, Optimizer, "optimizers")]
    if None in found:
        raise RuntimeError(
            "amp.scale_loss got an optimizer that amp.initialize has not seen; pass it to amp.initialize with the "
            "model, `model, optimizer = amp.initialize(model, optimizer)`, and use the one returned"
        )
    return found

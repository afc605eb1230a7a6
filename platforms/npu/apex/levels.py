"""The levels O0 to O3, what of a level the caller may override, and what `initialize` refuses.

Whatever is refused is refused before anything has changed.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.optim import Optimizer

from .parallel import inner

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PARALLEL = (nn.parallel.DistributedDataParallel, nn.DataParallel)


@dataclass(frozen=True)
class Level:
    """What one level does; the attributes carry the names of `initialize`'s arguments."""

    name: str
    cast_model_type: torch.dtype | None = None  # of weights and inputs; None: they stay as they are
    patch_torch_functions: bool = False  # each operation in the model's forward chooses its format
    keep_batchnorm_fp32: bool = False
    master_weights: bool = False  # the optimizer updates float32 copies of half weights
    loss_scale: float | str = 1.0  # or "dynamic"

    def __str__(self):
        parts = [f"weights in {str(self.cast_model_type or torch.float32).removeprefix('torch.')}"]
        if self.patch_torch_functions:
            parts.append("operations in float16 where that is safe")
        if self.keep_batchnorm_fp32:
            parts.append("batch norm in float32")
        if self.master_weights:
            parts.append("float32 master weights in the optimizer")
        scale = self.loss_scale if self.loss_scale == "dynamic" else f"{self.loss_scale:g}"
        return f"{self.name} · {', '.join(parts)}; loss scale {scale}"


LEVELS = {
    level.name: level
    for level in (
        Level("O0", torch.float32),
        Level("O1", patch_torch_functions=True, loss_scale="dynamic"),
        Level("O2", torch.float16, keep_batchnorm_fp32=True, master_weights=True, loss_scale="dynamic"),
        Level("O3", torch.float16),
    )
}


def chosen(opt_level, **overrides) -> Level:
    """The level `opt_level` with those overrides that are not None; ValueError for what is not allowed."""
    if opt_level not in LEVELS:
        hint = "; it begins with the letter O, not with a zero" if str(opt_level).startswith("0") else ""
        raise ValueError(f"opt_level={opt_level!r} is not a level; choose one of 'O0', 'O1', 'O2', 'O3'{hint}")
    given = {name: value for name, value in overrides.items() if value is not None}
    for name, value in given.items():
        if name == "loss_scale":
            given[name] = loss_scale(value)
        elif name == "cast_model_type":
            if value not in DTYPES:
                raise ValueError(f"cast_model_type={value!r} is not allowed; choose one of {DTYPES} or None")
        else:
            given[name] = _flag(name, value)
    if opt_level == "O1":
        for name in ("keep_batchnorm_fp32", "master_weights", "cast_model_type"):
            if given.get(name, torch.float32) is not torch.float32:
                raise ValueError(
                    f"{name!s}={given[name]} contradicts O1, which leaves all weights in float32 and casts inside the "
                    "operations; leave it out, or choose 'O2' or 'O3'"
                )
        given.pop("cast_model_type", None)
    elif given.get("patch_torch_functions"):
        raise ValueError(f"patch_torch_functions=True is what O1 does; choose 'O1' in place of {opt_level!r}")
    return replace(LEVELS[opt_level], **given)


def loss_scale(value) -> float | str:
    """The scale that `value` means: "dynamic" (also spelt -1), or a positive number, which may be a string."""
    if value == "dynamic":
        return value
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if number == -1:
        return "dynamic"
    if not 0 < number < math.inf:
        raise ValueError(
            f"loss_scale={value!r} is not allowed; give a positive number such as 128.0 (a string of it will do), "
            'or "dynamic", which -1 means too'
        )
    return number


def _flag(name, value):
    """`value` as a bool; command lines give the words."""
    flag = {"True": True, "False": False}.get(value, value)
    if not isinstance(flag, bool):
        raise ValueError(f"{name!s}={value!r} is not allowed; choose True, False or None")
    return flag


def listed(given, kind, what) -> list:
    """`given`, one `kind` or a list or tuple of different ones, as a list; of a LARC the optimizer inside."""
    items = [inner(item) for item in given] if isinstance(given, (list, tuple)) else [inner(given)]
    for item in items:
        if not isinstance(item, kind):
            raise TypeError(f"{what} must be a {kind.__module__}.{kind.__name__} or a list of them, not {item!r}")
    if len({id(item) for item in items}) < len(items):
        raise ValueError(f"one of the {what} is in the list twice")
    return items


def check_model(model, level):
    """Refuse a model that is wrapped, compiled or initialized already, or whose parameters do not go with `level`."""
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


def check_limits(num_losses, minimum, maximum):
    """Refuse a number of losses below 1, and limits of the scale that exclude each other (ValueError)."""
    if isinstance(num_losses, bool) or not isinstance(num_losses, int) or num_losses < 1:
        raise ValueError(f"num_losses={num_losses!r} is not allowed; give the number of losses, 1 or more")
    if not 0 <= (minimum or 0) <= maximum or maximum == 0:
        raise ValueError(
            f"min_loss_scale={minimum} and max_loss_scale={maximum} leave no loss scale; give positive numbers, the "
            "minimum below the maximum"
        )


def steppers_of(optimizers) -> list:
    """The Steppers of `optimizers`: one, or a list, all of them known to amp."""
    if optimizers is None or isinstance(optimizers, (list, tuple)) and not optimizers:
        raise ValueError("amp.scale_loss needs the optimizer(s) whose gradients this backward makes; there was none")
    found = [getattr(optimizer, "_amp_stepper", None) for optimizer in listed(optimizers, Optimizer, "optimizers")]
    if None in found:
        raise RuntimeError(
            "amp.scale_loss got an optimizer that amp.initialize has not seen; pass it to amp.initialize with the "
            "model, `model, optimizer = amp.initialize(model, optimizer)`, and use the one returned"
        )
    return found

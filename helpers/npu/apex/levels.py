"""The levels O0 to O3, and what of a level the caller may override."""

import math
from dataclasses import dataclass, replace

import torch

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Level:
    """What one level does; the attributes carry the names of `initialize`'s arguments.

    Attributes:
        name: "O0" to "O3".
        cast_model_type: dtype of weights and inputs, or None: they stay as they are.
        patch_torch_functions: whether each operation in the model's forward chooses its format.
        keep_batchnorm_fp32: whether batch norm stays in float32 when the weights are cast.
        master_weights: whether the optimizer updates float32 copies of half weights.
        loss_scale: a number, or "dynamic".
    """

    name: str
    cast_model_type: torch.dtype | None = None
    patch_torch_functions: bool = False
    keep_batchnorm_fp32: bool = False
    master_weights: bool = False
    loss_scale: float | str = 1.0

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
    """The level `opt_level` with those overrides that are not None.

    Raises:
        ValueError: a value that is not allowed, or that contradicts the level.
    """
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
                    f"{name}={given[name]} contradicts O1, which leaves all weights in float32 and casts inside the "
                    "operations; leave it out, or choose 'O2' or 'O3'"
                )
        given.pop("cast_model_type", None)
    elif given.get("patch_torch_functions"):
        raise ValueError(f"patch_torch_functions=True is what O1 does; choose 'O1' in place of {opt_level!r}")
    return replace(LEVELS[opt_level], **given)


def loss_scale(value) -> float | str:
    """The scale that `value` means: "dynamic" (also spelt -1), or a positive number, which may be a string.

    Raises:
        ValueError: anything else.
    """
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
        raise ValueError(f"{name}={value!r} is not allowed; choose True, False or None")
    return flag

"""The reader's own functions under O1: in half, in float32, or in the widest format among their inputs."""

import functools

import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves, tree_map

from . import casting
from .casting import HALF, to_dtype

_patched = {}  # (id of the module, name): (module, the function that was there)

BANNED = (
    "binary_cross_entropy and BCELoss do not go with opt_level='O1': this input was computed in float16, where a "
    "sigmoid rounds to exactly 0 or 1 and its logarithm is lost. Leave the sigmoid out of the model and use "
    "torch.nn.BCEWithLogitsLoss in place of BCELoss; or compute the sigmoid in float32: "
    "amp.register_float_function(torch, 'sigmoid') before amp.initialize"
)


def half_function(function):
    """Decorator: under O1 `function` gets its float32 tensors in half and computes in half throughout."""
    return _wrapped(function, lambda casts, tensors: to_dtype(casts.autocast, only=(torch.float32,)))


def float_function(function):
    """Decorator: under O1 `function` gets its half tensors in float32 and computes in float32 throughout."""
    return _wrapped(function, lambda casts, tensors: to_dtype(torch.float32, only=HALF))


def promote_function(function):
    """Decorator: under O1 `function` gets half tensors in float32 if another of its tensors is in float32."""

    def cast(casts, tensors):
        widest = any(tensor.dtype == torch.float32 for tensor in tensors)
        return to_dtype(torch.float32, only=HALF if widest else ())

    return _wrapped(function, cast, autocast=True)


def _not_in_half(function):
    def cast(casts, tensors):
        if any(tensor.dtype in HALF or getattr(tensor, "_amp_was_half", False) for tensor in tensors):
            raise NotImplementedError(BANNED)
        return to_dtype(torch.float32, only=())

    return _wrapped(function, cast)


def _wrapped(function, cast, autocast=False):
    """`function` with its tensors cast by `cast(casts, tensors)`; without autocast, which would choose once more."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        casts = casting.active()
        if casts is None:
            return function(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if torch.is_tensor(leaf)]
        args, kwargs = tree_map(cast(casts, tensors), (args, kwargs))
        with torch.autocast(casts.kind, casts.autocast, enabled=autocast and torch.is_autocast_enabled(casts.kind)):
            return function(*args, **kwargs)

    return wrapper


def register_half_function(module, name):
    """`half_function` for `module.name`, which others call; until the process ends."""
    _patch(module, name, half_function)


def register_float_function(module, name):
    """`float_function` for `module.name`, which others call; until the process ends."""
    _patch(module, name, float_function)


def register_promote_function(module, name):
    """`promote_function` for `module.name`, which others call; until the process ends."""
    _patch(module, name, promote_function)


def ban():
    """Let binary_cross_entropy of something computed in half raise, unless the reader registered it."""
    if (id(F), "binary_cross_entropy") not in _patched:
        _patch(F, "binary_cross_entropy", _not_in_half)


def _patch(module, name, decorate):
    if not callable(getattr(module, name, None)):
        raise ValueError(f"there is no function {name!r} in {module!r}; give the module (or class) and the name in it")
    _, original = _patched.setdefault((id(module), name), (module, getattr(module, name)))
    setattr(module, name, decorate(original))  # around the original: the latest registration counts


def restore():
    """Put back every function that was registered."""
    for (_, name), (module, function) in _patched.items():
        setattr(module, name, function)
    _patched.clear()

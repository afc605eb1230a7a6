"""The reader's own functions under O1: in half, in float32, or in the widest format among their inputs."""

import functools

import torch
import torch.nn.functional as F

from . import casting
from .casting import HALF, converted, to_dtype

_patched = {}  # (id of the module, name): (module, the function that was there, whether amp itself put it there)

BANNED = (
    "binary_cross_entropy and BCELoss do not go with opt_level='O1': this input was computed in float16, where a "
    "sigmoid rounds to exactly 0 or 1 and its logarithm is lost. Leave the sigmoid out of the model and use "
    "torch.nn.BCEWithLogitsLoss in place of BCELoss; or compute the sigmoid in float32: "
    "amp.register_float_function(torch, 'sigmoid') before amp.initialize"
)


def half_function(function):
    """Decorator: under O1 `function` gets its float32 tensors in half and computes in half throughout."""
    return _wrapped(function, _in_half)


def float_function(function):
    """Decorator: under O1 `function` gets its half tensors in float32 and computes in float32 throughout."""
    return _wrapped(function, _in_float)


def promote_function(function):
    """Decorator: under O1 `function` gets half tensors in float32 if another of its tensors is in float32."""
    return _wrapped(function, _promoted)


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
        _patch(F, "binary_cross_entropy", lambda function: _wrapped(function, _refused_in_half))


def restore():
    """Put back every function that was registered."""
    for (_, name), (module, function) in _patched.items():
        setattr(module, name, function)
    _patched.clear()


def _patch(module, name, decorate):
    if not callable(getattr(module, name, None)):
        raise ValueError(f"there is no function {name!r} in {module!r}; give the module (or class) and the name in it")
    key = (id(module), name)
    _patched.setdefault(key, (module, getattr(module, name)))
    setattr(module, name, decorate(_patched[key][1]))  # around the original: the latest registration counts


def _wrapped(function, call):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        casts = casting.active()
        if casts is None:
            return function(*args, **kwargs)
        return call(casts, function, args, kwargs)

    return wrapper


def _without_autocast(casts, function, args, kwargs):
    # Otherwise autocast would choose again, inside the function, what was just chosen.
    with torch.autocast(casts.kind, enabled=False):
        return function(*args, **kwargs)


def _in_half(casts, function, args, kwargs):
    args, kwargs = converted((args, kwargs), to_dtype(casts.autocast, only=(torch.float32,)))
    return _without_autocast(casts, function, args, kwargs)


def _in_float(casts, function, args, kwargs):
    args, kwargs = converted((args, kwargs), to_dtype(torch.float32, only=HALF))
    return _without_autocast(casts, function, args, kwargs)


def _tensors(values):
    found = []
    converted(values, lambda value: found.append(value) or value)
    return [value for value in found if torch.is_tensor(value)]


def _promoted(casts, function, args, kwargs):
    if any(tensor.dtype == torch.float32 for tensor in _tensors((args, kwargs))):
        args, kwargs = converted((args, kwargs), to_dtype(torch.float32, only=HALF))
    return function(*args, **kwargs)


def _refused_in_half(casts, function, args, kwargs):
    for tensor in _tensors((args, kwargs)):
        if tensor.dtype in HALF or getattr(tensor, "_amp_was_half", False):
            raise RuntimeError(BANNED)
    return _without_autocast(casts, function, args, kwargs)

"""Copies of a model and of its batch for checks, and whether a copy is enough to leave the model's own state alone."""

import builtins
import copy
import dis
import io
import os
import random
import sys
import sysconfig
from collections.abc import Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import fields, is_dataclass
from functools import partial
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType

import cloudpickle
import numpy
import torch
from torch import nn
from torch.nn.modules import module as torch_module

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
CONSTANTS = (FunctionType, ModuleType, type, BuiltinFunctionType)  # they may change, but do not in a forward pass
LIBRARIES = ("site-packages", "dist-packages", sysconfig.get_path("stdlib"), os.path.dirname(__file__))


def tensors(value, seen=None) -> list:
    """The tensors in `value` (tuples, dicts, dataclasses, other objects, but not modules), each once, in order."""
    seen = {} if seen is None else seen
    if id(value) in seen or isinstance(value, (nn.Module, ModuleType, FunctionType, type)):
        return []
    seen[id(value)] = value
    if torch.is_tensor(value):
        return [value]
    if isinstance(value, (list, tuple)):
        parts = value
    elif isinstance(value, Mapping):
        parts = list(value.values())
    elif is_dataclass(value):
        parts = [getattr(value, field.name, None) for field in fields(value)]
    else:
        parts = list(getattr(value, "__dict__", {}).values())
    return [tensor for part in parts for tensor in tensors(part, seen)]


def replaced(value, change):
    """A deep copy of `value` with `change(tensor)` in the place of each tensor."""
    return copy.deepcopy(value, {id(tensor): change(tensor) for tensor in tensors(value)})


def twin(model):
    """A copy of `model` that shares nothing with it; what it keeps of an earlier graph is a constant there."""
    kept = [tensor for tensor in tensors([vars(module) for module in model.modules()]) if not tensor.is_leaf]
    return copy.deepcopy(model, {id(tensor): tensor.detach().clone() for tensor in kept})


@contextmanager
def without_trace(device):
    """Random numbers of torch, NumPy and Python are afterwards as before, and nothing is printed."""
    drawn, arrays = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        try:
            with redirect_stdout(io.StringIO()):
                yield
        finally:
            random.setstate(drawn)
            numpy.random.set_state(arrays)


class Outside:
    """What forward and hooks use besides the model and their arguments: closures, globals, attributes of classes.

    A copy of the model shares it. So where a step changes it, a check on a copy would change it once more.
    """

    def __init__(self, model):
        self.model, self.before = model, _marks(model)

    def changed(self) -> list:
        """Names of what has changed since, or cannot be compared."""
        now = _marks(self.model).items()
        return sorted({key[1] for key, mark in now if mark is None or mark != self.before.get(key)})


def _marks(model):
    """{(where, name): bytes that change with the value there; None if nothing can say, or if it is the model's own}."""
    own, marks = {id(module) for module in model.modules()}, {}
    for key, value in _reached(model).items():
        try:
            state = value.state_dict() if isinstance(value, nn.Module) else value
            shared = id(getattr(value, "__self__", value)) in own
            marks[key] = None if shared else cloudpickle.dumps(state)
        except Exception:  # what cannot be pickled, such as an open file
            marks[key] = None
    return marks


def _reached(model):
    """{(where, name): value} of what the reader's functions in a forward pass find outside of their arguments."""
    kinds = {
        kind
        for module in model.modules()
        for kind in type(module).__mro__
        if kind.__module__ not in sys.modules or _readers(getattr(sys.modules[kind.__module__], "__file__", None))
    }
    places = [torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks, *map(vars, kinds)]
    for module in model.modules():
        places += [vars(module), *(getattr(module, hooks) for hooks in HOOKS)]
    todo = [function for place in places for one in place.values() if (function := _function(one))]
    found = {(kind, n): v for kind in kinds for n, v in vars(kind).items() if n[:2] != "__" and not _function(v)}
    for function in todo:  # which grows
        for name, value in _used(function).items():
            if (called := _function(value)) and called not in todo:
                todo.append(called)
            constant = isinstance(value, CONSTANTS) or type(value).__module__.startswith(
                ("torch._library", "torch._ops")
            )
            if value is open or not constant:
                found[function, name] = value
    return found


def _readers(file):
    """Whether code in `file` is the reader's (a notebook has none), not a library's."""
    return not file or not any(part in file for part in LIBRARIES)


def _function(value):
    """The reader's function behind a method, a partial function, a property or a callable object, or None."""
    for kind, name in ((MethodType, "__func__"), (staticmethod, "__func__"), (partial, "func"), (property, "fget")):
        value = getattr(value, name) if isinstance(value, kind) else value
    if not isinstance(value, FunctionType):
        value = vars(type(value)).get("__call__")
    return value if isinstance(value, FunctionType) and _readers(value.__code__.co_filename) else None


def _used(function):
    """{name: value} of the globals, closures and default arguments of a function, and of those defined in it."""
    codes, names = [function.__code__], set()
    for code in codes:  # which grows
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        names |= {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "STORE_GLOBAL")}
    values = {name: function.__globals__.get(name, getattr(builtins, name, None)) for name in names}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    values |= {name: cell.cell_contents for name, cell in cells if cell != CellType()}  # an empty one has no contents
    return values | {f"{function.__name__}({n})": value for n, value in enumerate(function.__defaults__ or ())}

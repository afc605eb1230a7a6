"""Formats: of weights, of what goes into a model and comes out, and of the operations inside."""

import contextlib
import copyreg
import dataclasses
import functools
import threading

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map

HALF = (torch.float16, torch.bfloat16)


def to_dtype(dtype, only=None):
    """A function for tree_map: floating tensors (those of the formats `only`) become `dtype`."""

    def change(value):
        if torch.is_tensor(value):
            wanted = value.is_floating_point() if only is None else value.dtype in only
            return value.to(dtype) if wanted and value.dtype != dtype else value
        own = only is None and hasattr(value, "to") and not isinstance(value, (type, nn.Module))
        return value.to(dtype) if own else value  # the reader's own class of batches knows what to cast

    return change


def _exact(value):
    """Half outputs in float32, as a loss wants them; they remember where they come from (see functions.py)."""
    if not torch.is_tensor(value) or value.dtype not in HALF:
        return value
    exact = value.float()
    if not torch.compiler.is_compiling():
        exact._amp_was_half = True
    return exact


@dataclasses.dataclass
class Casts:
    """What is cast around one model's forward."""

    kind: str  # of the model's device
    autocast: torch.dtype | None = None  # half dtype of operations that choose their own format
    inputs: torch.dtype | None = None  # None for no cast
    outputs: torch.dtype | None = None  # None: half ones become float32
    local: bool = False  # the last forward was in DDP's `no_sync`, so its gradients stay on this rank

    @contextlib.contextmanager
    def region(self):
        """The context of the forward."""
        stack = _stack()
        if stack and stack[-1] is OFF:
            yield
            return
        stack.append(self)
        try:
            with torch.autocast(self.kind, self.autocast) if self.autocast else contextlib.nullcontext():
                yield
        finally:
            stack.pop()


OFF = Casts("cpu")  # what `disable_casts` puts on the stack
_regions = threading.local()
_outside = None  # casts of user functions outside any forward: those of the latest `initialize`


def _stack():
    if not hasattr(_regions, "stack"):
        _regions.stack = []
    return _regions.stack


def active():
    """The Casts that user functions follow at this moment; None where nothing is to be cast."""
    stack = _stack()
    casts = stack[-1] if stack else _outside
    return casts if casts is not None and casts.autocast else None


def set_outside(casts):
    """Let user functions outside any forward follow `casts`; None for no casts."""
    global _outside
    _outside = casts


@contextlib.contextmanager
def disable_casts():
    """No operation and no user function casts inside this context."""
    kinds = {casts.kind for casts in (*_stack(), _outside) if casts is not None}
    with contextlib.ExitStack() as contexts:
        for kind in kinds:
            contexts.enter_context(torch.autocast(kind, enabled=False))
        _stack().append(OFF)
        try:
            yield
        finally:
            _stack().pop()


def cast_weights(model, dtype, keep_batchnorm_fp32):
    """Parameters and floating buffers of `model` in `dtype`, in place; batch norm with weights can stay as it is.

    Returns what the parameters were, {id: float32 tensor}, for their masters: a checkpoint that was loaded before is
    not rounded.
    """
    exact = {}
    for module in model.modules():
        if keep_batchnorm_fp32 and isinstance(module, nn.modules.batchnorm._BatchNorm) and module.affine:
            continue
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if tensor.is_floating_point() and tensor.dtype != dtype:
                tensor.grad = None
                if tensor.dtype == torch.float32:
                    exact[id(tensor)] = tensor.data
                tensor.data = tensor.data.to(dtype)
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()
    return exact


def cast_forward(model, casts):
    """Let `model` cast around its forward.

    The object gets a class of its own, derived from the one it had. So copies of the model cast as
    well (a `forward` set on the object would call the original's weights), and so do the replicas
    of DataParallel; no other object of the class is touched.
    """
    model._amp_casts = casts
    model._amp_forward = vars(model).pop("forward", None)  # one that was set on the object
    model.__class__ = _casting(type(model))


def _casting(cls):
    class Casting(cls):
        @functools.wraps(cls.forward)
        def forward(self, *args, **kwargs):
            casts, inner = self._amp_casts, self._amp_forward or super().forward
            if torch.is_grad_enabled():
                ddp = getattr(DistributedDataParallel, "_active_ddp_module", None)
                casts.local = ddp is not None and not ddp.require_backward_grad_sync
            with casts.region():
                if casts.inputs:
                    args, kwargs = tree_map(to_dtype(casts.inputs), (args, kwargs))
                outputs = inner(*args, **kwargs)
            return tree_map(to_dtype(casts.outputs) if casts.outputs else _exact, outputs)

        def __reduce_ex__(self, protocol):
            function, arguments, *rest = super().__reduce_ex__(protocol)
            if function is copyreg.__newobj__:  # the class cannot be found by name, so it is made again
                function, arguments = _rebuilt, (cls,)
            return function, arguments, *rest

    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(Casting, name, getattr(cls, name))
    return Casting


def _rebuilt(cls):
    casting = _casting(cls)
    return casting.__new__(casting)

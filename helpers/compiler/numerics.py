"""Are a plan's numbers right? Its outputs and gradients against eager's, on the live batch.

No fixed tolerance works: gradients in fp32 are 1e-7 away from those in fp64 for an MLP, and 1e-2 for a ResNet, where a
unit whose input is nearly zero falls on the other side of its ReLU. So eager's own distance from fp64 is the unit, and
a plan may be ALLOWED units away. Checks run on copies of the model and of the batch.
"""

import time
from contextlib import nullcontext
from functools import partial

import torch

from .copies import replaced, tensors, twin, without_trace
from .plan import Plan, device_of

ALLOWED = 3  # times eager's own error
TRIALS, MOVED = 3, 2.0**-10  # batches on which a plan may show that it is right, and how far apart they are
# Relative, by whether a plan computes in bf16. FLOOR is never held against a plan: a compiler may add a long sum up one
# number after the other, which in fp32 costs √n roundings, here of 65,536 numbers. NOISE on the inputs: 16 roundings in
# fp32, one in bf16.
FLOOR = {False: 2.0**-16, True: 2.0**-8}
NOISE = {False: 2.0**-20, True: 2.0**-8}


class NumericsCheck:
    """Compares plans with eager on one live batch.

    Args:
        model: the module; `forward(model, *args, **kwargs)` is its own forward, without any plan.

    Attributes:
        trains: whether an output depends on something that learns.
        reference: what results are compared with, in words: "fp64", or why not.
        eager_s: seconds of a step of eager; first_s: of the first step of the plan checked last, compilation included.
    """

    def __init__(self, model, forward, args, kwargs):
        self.model, self.forward, self.batch = model, forward, (args, kwargs)
        self.device = device_of(args, kwargs)
        self._own, self._near = {False: self._runs_of_eager(False)}, {}
        began = time.perf_counter()
        self.eager = self._run(forward)
        self.eager_s = self.first_s = time.perf_counter() - began
        self.trains, self.exact, self.reference = bool(self.eager[1]), self.eager, "fp64"
        try:
            exact = self._run(forward, double=True)
            if distance(self.eager[1], exact[1]) > 0.5:
                raise ValueError("it draws other random numbers there")
            self.exact = exact
        except Exception as error:
            said = f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
            self.reference = f"eager itself, as the model does not run alike in fp64 ({said})"

    def errors(self, plan, call) -> tuple:
        """(error of outputs and buffers, error of gradients) of `call`, which computes `plan`, in units of eager's own.

        A plan that seems wrong is checked again on batches that are nearly the same: a unit may have been at its kink.
        A plan that is wrong is wrong on all. What `call` raises is raised.
        """
        began = time.perf_counter()
        result = self._run(call)
        self.first_s = time.perf_counter() - began
        found = self._errors(result, plan.bf16)
        for trial in range(1, TRIALS):
            if max(found) <= ALLOWED:
                break
            if trial not in self._near:
                moved = replaced(self.batch, partial(_copy, noise=trial * MOVED))
                self._near[trial] = NumericsCheck(self.model, self.forward, *moved)
            near = self._near[trial]
            found = min(found, near._errors(near._run(call), plan.bf16), key=max)
        return found

    def _run(self, call, noise=0.0, double=False):
        """(outputs and what the model keeps, gradients) of `call`, a way to compute the forward, as flat tensors.

        The loss is the inner product of outputs with fixed random numbers. With `double` all is in fp64, without
        autocast; that raises where it cannot be.
        """
        generator, model = torch.Generator().manual_seed(0), twin(self.model)
        args, kwargs = replaced(self.batch, partial(_copy, noise=noise, double=double))
        if double:
            model._apply(partial(_copy, double=True))
        full = torch.autocast(self.device.type, enabled=False) if double else nullcontext()
        with without_trace(self.device), torch.enable_grad(), full:
            outputs = call(model, *args, **kwargs)
            weights = list(model.parameters())
            kept = tensors([outputs, *map(vars, model.modules())], dict.fromkeys(map(id, weights)))
            kept = [_real(tensor) for tensor in kept if tensor.is_floating_point() or tensor.is_complex()]
            loss = sum((t * torch.randn(t.shape, generator=generator).to(t)).sum() for t in kept if t.requires_grad)
            learning, gradients = [t for t in weights + tensors((args, kwargs)) if t.requires_grad], ()
            if learning and torch.is_tensor(loss):
                gradients = torch.autograd.grad(loss, learning, allow_unused=True, materialize_grads=True)
            return _flat(kept), _flat(map(_real, gradients))

    def _errors(self, result, bf16):
        if bf16 not in self._own:
            self._own[bf16] = self._runs_of_eager(bf16)
        own = zip(*self._own[bf16], strict=True)
        return tuple(map(_error, result, self.exact, own, [FLOOR[bf16]] * 2))

    def _runs_of_eager(self, bf16):
        """Eager on the batch, and on the batch moved to either side: a unit near its kink is once on each."""
        eager = Plan(bf16=bf16).make(self.forward)
        return [self._run(eager, noise) for noise in (0.0, NOISE[bf16], -NOISE[bf16])]


def distance(result, exact) -> float:
    """How far `result` is from `exact`, relative to its length, all tensors together."""
    return _norm([a - b for a, b in zip(result, exact, strict=True)]) / (_norm(exact) or 1.0)


def _error(result, exact, own, floor):
    """The largest error among the tensors of `result`, in units of that of eager's `own` results.

    A tensor of few elements may be right by luck, and a gradient that is zero in exact arithmetic is all noise: so each
    tensor is granted the relative error of all together, and its share of their absolute one.
    """
    relative = max(floor, *(distance(each, exact) for each in own))
    whole, count, largest = _norm(exact), sum(e.numel() for e in exact), 0.0
    for found, e, *eagers in zip(result, exact, *own, strict=True):
        share = whole * (e.numel() / count) ** 0.5
        unit = max(relative * e.norm().item(), relative * share, *((eager - e).norm().item() for eager in eagers))
        error = (found - e).norm().item()
        if error != error:  # not a number
            return float("inf")
        largest = max(largest, error / unit if unit else float("inf") if error else 0.0)
    return largest


def _norm(tensors):
    return sum(t.square().sum().item() for t in tensors) ** 0.5


def _real(tensor):
    """A complex tensor as pairs of real numbers; a sparse one (a gradient) as a dense one."""
    tensor = tensor if tensor.layout == torch.strided else tensor.to_dense()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _flat(tensors):
    return [t.detach().to("cpu", torch.float64).flatten() for t in tensors]


def _copy(tensor, noise=0.0, double=False):
    """A copy that belongs to no graph; with relative noise, or in fp64."""
    copy, kind = tensor.detach().clone(), {False: torch.float64, True: torch.complex128}[tensor.is_complex()]
    if copy.is_floating_point() or copy.is_complex():
        if noise:
            copy *= 1 + noise * torch.randn(copy.shape, generator=torch.Generator().manual_seed(0)).to(copy)
        if double:
            copy = copy.to(kind)
    return copy.requires_grad_(tensor.requires_grad)

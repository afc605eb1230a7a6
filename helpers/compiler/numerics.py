"""Are a plan's numbers right? Its outputs and gradients against eager's, on the live batch.

No fixed tolerance works: gradients in fp32 are 1e-7 away from those in fp64 for an MLP, and 1e-2 for a ResNet, where a
unit whose input is nearly zero falls on the other side of its ReLU. So eager's own distance from fp64 is the unit, and
a plan may be ALLOWED units away. A check changes nothing of the model: not `.grad`, buffers, random numbers or inputs.
"""

import time
from contextlib import contextmanager

import torch
from torch.utils import _pytree as pytree

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
        model: the module; `forward` is its own forward, without any plan.

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
            exact = self._run_in_double()
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
                self._near[trial] = NumericsCheck(self.model, self.forward, *self._moved(trial * MOVED))
            near = self._near[trial]
            found = min(found, near._errors(near._run(call), plan.bf16), key=max)
        return found

    def _run(self, call, noise=0.0):
        """(outputs with buffers, gradients) of `call`, a way to compute the forward, as flat tensors in float64."""
        return self._pass(call, self.model.parameters(), self.model.buffers(), *self._moved(noise))

    def _moved(self, noise):
        return pytree.tree_map_only(torch.Tensor, lambda t: _copy(t, noise), self.batch)

    def _errors(self, result, bf16):
        if bf16 not in self._own:
            self._own[bf16] = self._runs_of_eager(bf16)
        own = zip(*self._own[bf16], strict=True)
        return tuple(map(_error, result, self.exact, own, [FLOOR[bf16]] * 2))

    def _runs_of_eager(self, bf16):
        """Eager on the batch, and on the batch moved to either side: a unit near its kink is once on each."""
        eager = Plan(bf16=bf16).make(self.forward)
        return [self._run(eager, noise) for noise in (0.0, NOISE[bf16], -NOISE[bf16])]

    def _run_in_double(self):
        """Eager with everything in fp64 and without autocast; raises where that cannot be."""
        double = lambda tensor: _copy(tensor, double=True)  # noqa: E731
        parameters = {name: double(p) for name, p in self.model.named_parameters()}
        buffers = {name: double(b) for name, b in self.model.named_buffers()}
        args, kwargs = pytree.tree_map_only(torch.Tensor, double, self.batch)
        call = lambda *a, **k: torch.func.functional_call(self.model, {**parameters, **buffers}, a, k)  # noqa: E731
        with torch.autocast(self.device.type, enabled=False):
            return self._pass(call, parameters.values(), buffers.values(), args, kwargs)

    def _pass(self, call, parameters, buffers, args, kwargs):
        """Forward, and backward from the outputs' inner product with fixed random numbers."""
        generator = torch.Generator().manual_seed(0)
        with untouched(self.model, self.device), torch.enable_grad():
            outputs = [o for o in pytree.tree_leaves(call(*args, **kwargs)) if _is_floating(o)]
            loss = sum((o * torch.randn(o.shape, generator=generator).to(o)).sum() for o in outputs)
            learning = [t for t in (*parameters, *pytree.tree_leaves((args, kwargs))) if _is_floating(t, True)]
            gradients = ()
            if learning and torch.is_tensor(loss) and loss.requires_grad:
                gradients = torch.autograd.grad(loss, learning, allow_unused=True, materialize_grads=True)
            return _flat((*outputs, *filter(_is_floating, buffers))), _flat(gradients)


@contextmanager
def untouched(model, device):
    """The model's buffers and torch's random number generators are afterwards what they were before."""
    buffers = [(b, b.detach().clone()) for b in model.buffers()]
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)


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


def _is_floating(value, learns=False):
    return torch.is_tensor(value) and value.is_floating_point() and value.requires_grad >= learns


def _flat(tensors):
    return [t.detach().to("cpu", torch.float64).flatten() for t in tensors]


def _copy(tensor, noise=0.0, double=False):
    """A copy, since a model may work on its inputs in place; with relative noise, or in fp64."""
    copy = tensor.detach().clone()
    if noise and copy.is_floating_point():
        copy *= 1 + noise * torch.randn(copy.shape, generator=torch.Generator().manual_seed(0)).to(copy)
    if double and copy.is_floating_point():
        copy = copy.double()
    return copy.requires_grad_(tensor.requires_grad)

"""Is a plan right? Its outputs and gradients against eager's, on the live batch.

No fixed tolerance works: gradients in fp32 are 1e-7 away from those in fp64 for an MLP, and 1e-2
for a ResNet, where one unit whose input is nearly zero falls on the other side of its ReLU. So
eager's own distance from fp64 is the tolerance, and a plan may be three times as far away. A check changes nothing of
the model: not `.grad`, buffers, random number generators or inputs.
"""

import random
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree

from .plan import Plan, device_of, with_marks

ALLOWED = 3.0  # times eager's own error
TRIALS = 3  # batches on which a plan may show that it is right
# Relative noise put on the inputs, to see which units are near a kink: 16 roundings in fp32. In bf16
# so many units change sides that its own rounding shows them.
NOISE = {torch.float32: 2.0**-20, torch.bfloat16: 2.0**-8}
# Relative errors that are never held against a plan. Eager adds long sums up in pairs, compilers often one
# number after the other, which in fp32 costs √n roundings: this is for 65,536 numbers. bf16 is summed in fp32.
FLOOR = {torch.float32: 2.0**-16, torch.bfloat16: 2.0**-8}


class Judge:
    """Compares plans with eager on one live batch.

    Args:
        model: the module; `forward` is its own forward, without any plan.

    Attributes:
        probe: the live batch as a Probe.
        first_s: seconds of the first step of the plan tried last, its compilation included.
        eager_s: seconds of a step of eager.

    Raises:
        Exception: what the model itself raises on this batch.
    """

    def __init__(self, model, forward, args, kwargs):
        self.model, self.forward, self.batch = model, forward, (args, kwargs)
        self.probe = Probe(model, forward, args, kwargs)
        self._tolerances, self._references = {}, {}
        began = time.perf_counter()
        self.probe.run(forward)
        self.first_s = self.eager_s = time.perf_counter() - began

    def errors(self, plan, call):
        """(output error, gradient error) of `call`, which computes `plan`, in units of eager's own.

        A plan that seems wrong on the live batch is tried again on others that are nearly the same: a
        unit may have been at its kink, where the gradient jumps. A plan that is wrong is wrong on all.

        Raises:
            Exception: whatever `call` raises.
        """
        best = None
        for trial in range(TRIALS):
            probe, tolerance = self._tolerance(plan.bf16, trial)
            began = time.perf_counter()
            result = probe.run(call)
            if not trial:
                self.first_s = time.perf_counter() - began
            found = tolerance.errors(result)
            if best is None or max(found) < max(best):
                best = found
            if max(best) <= ALLOWED:
                break
        return best

    @property
    def compared_with(self) -> str:
        """What results are compared with, in words: "fp64", or why not."""
        return self._reference(self.probe, None)[1]

    def _tolerance(self, bf16, trial):
        if (bf16, trial) not in self._tolerances:
            dtype = torch.bfloat16 if bf16 else torch.float32
            probe = self._near(trial, dtype) if trial else self.probe
            others = [self._near(10 * trial + k, dtype) for k in (1, 2)]
            for other in others:
                other.weights = probe.weights
            images = any(torch.is_tensor(t) and t.dim() == 4 for t in pytree.tree_leaves(self.batch))
            layouts = (False, True) if images else (False,)
            eager = [Plan("eager", layout, bf16).make(self.forward) for layout in layouts]
            own = [q.run(call) for call in eager for q in (probe, *others)]
            self._tolerances[bf16, trial] = probe, Tolerance(self._reference(probe, own[0])[0], own, dtype)
        return self._tolerances[bf16, trial]

    def _near(self, seed, dtype):
        return Probe(self.model, self.forward, *self.batch, seed, NOISE[dtype])

    def _reference(self, probe, own):
        """(result, what it is in words)."""
        if probe not in self._references:
            try:
                exact = probe.run_in_double(), "fp64"
                if probe.draws and distance(own.outputs, exact[0].outputs) > 0.5:
                    raise ValueError("it draws other random numbers there")
            except Exception as error:
                said = f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
                exact = None, f"eager itself, as the model does not run in fp64 ({said})"
            self._references[probe] = exact
        exact, kind = self._references[probe]
        return (own if exact is None else exact), kind


class Tolerance:
    """How far eager is from the reference `exact`: from fp64, or from itself where a model cannot run in fp64."""

    def __init__(self, exact, own, dtype):
        self.own = {
            part: _Own([getattr(a, part) for a in own], getattr(exact, part), FLOOR[dtype])
            for part in ("outputs", "buffers", "gradients")
        }

    def errors(self, result):
        """(outputs and buffers, gradients): the largest error in `result`, in units of eager's own."""
        outputs, buffers, gradients = (own.ratio(getattr(result, part)) for part, own in self.own.items())
        return max(outputs, buffers), gradients


class _Own:
    """Eager's own errors of some tensors.

    A tensor of few elements can be right by luck, and a gradient that is zero in exact arithmetic is
    all noise: so each tensor is granted the relative error of all together, and its share of the
    absolute one. All together may also be too long or too short by a tenth of the relative error at
    least; noise hides a factor less well than it hides a single number.
    """

    def __init__(self, results, reference, floor):
        self.reference = reference
        self.relative = max([distance(result, reference) for result in results] + [floor])
        self.factor = max([abs(_excess(result, reference)) for result in results] + [self.relative / 10])
        whole, count = _norm(reference), sum(r.numel() for r in reference)
        self.each = []
        for place, r in enumerate(reference):
            errors = [(result[place] - r).norm().item() for result in results]
            share = whole * (r.numel() / count) ** 0.5
            self.each.append(max(*errors, self.relative * r.norm().item(), self.relative * share))

    def ratio(self, result):
        """The largest error among the tensors of `result` and of its length, in units of these."""
        found = [abs(_excess(result, self.reference)) / self.factor]
        for tensor, reference, own in zip(result, self.reference, self.each, strict=True):
            error = (tensor - reference).norm().item()
            found.append(error / own if own else float("inf") if error else 0.0)
        return max(value if value == value else float("inf") for value in found)  # not a number is wrong


def distance(result, reference):
    """How far `result` is from `reference`, relative to its length, all tensors together."""
    return _norm([a - r for a, r in zip(result, reference, strict=True)]) / (_norm(reference) or 1.0)


def _excess(result, reference):
    """How much longer `result` is than `reference` in its direction, relative to it."""
    square = sum(r.square().sum().item() for r in reference)
    along = sum(((a - r) @ r).item() for a, r in zip(result, reference, strict=True))
    return along / (square or 1.0)


def _norm(tensors):
    return sum(t.square().sum().item() for t in tensors) ** 0.5


# -- one forward and backward pass that leaves no trace ------------------------------------


@dataclass
class Result:
    """What a forward and backward pass returned, in float64 on the CPU, each tensor flat.

    Attributes:
        outputs: the model's floating outputs.
        buffers: its floating buffers afterwards.
        gradients: of the parameters, and of the inputs that require one.
    """

    outputs: list
    buffers: list
    gradients: list


class Probe:
    """One batch, and what is differentiated: the outputs' inner product with fixed random numbers.

    Args:
        seed: of these random numbers.
        noise: relative size of the noise that is put on the floating inputs, 0 for the live batch.

    Attributes:
        draws: whether the model draws random numbers in forward.
        trains: whether an output depends on something that learns.
    """

    def __init__(self, model, forward, args, kwargs, seed=0, noise=0.0):
        self.model, self.device = model, device_of(args, kwargs)
        self.generator = torch.Generator().manual_seed(seed)
        self.args, self.kwargs = pytree.tree_map_only(torch.Tensor, lambda t: self._noisy(t, noise), (args, kwargs))
        before = _generators(self.device)
        with untouched(model, self.device), torch.enable_grad():
            outputs = self._outputs(forward, *self._inputs())
            self.draws = not all(map(torch.equal, before, _generators(self.device)))
        self.weights = [torch.randn(o.shape, generator=self.generator, dtype=torch.float64) for o in outputs]
        self.trains = any(o.requires_grad for o in outputs)

    def run(self, call) -> Result:
        """Outputs and gradients of `call`, a way to compute the model's forward."""
        with untouched(self.model, self.device), torch.enable_grad():
            args, kwargs = self._inputs()
            outputs = self._outputs(call, args, kwargs)
            wanted = [p for p in self.model.parameters() if p.requires_grad] + _learning((args, kwargs))
            gradients = self._gradients(outputs, wanted)
            buffers = filter(torch.is_floating_point, self.model.buffers())
            return Result(_exact(outputs), _exact(buffers), gradients)

    def run_in_double(self) -> Result:
        """Eager's result with everything in fp64 and without autocast; raises where that cannot be."""
        parameters = {n: _doubled(p) for n, p in self.model.named_parameters()}
        buffers = {n: _doubled(b.detach().clone()) for n, b in self.model.named_buffers()}
        args, kwargs = pytree.tree_map_only(torch.Tensor, _doubled, self._inputs())
        with untouched(self.model, self.device), torch.enable_grad(), torch.autocast(self.device.type, enabled=False):
            doubled = {**parameters, **buffers}
            call = lambda *a, **k: torch.func.functional_call(self.model, doubled, a, k)  # noqa: E731
            outputs = self._outputs(call, args, kwargs)
            wanted = [p for p in parameters.values() if p.requires_grad] + _learning((args, kwargs))
            gradients = self._gradients(outputs, wanted)
        return Result(_exact(outputs), _exact(filter(torch.is_floating_point, buffers.values())), gradients)

    def _inputs(self):
        """Copies, since a model may work on its inputs in place."""
        return pytree.tree_map_only(torch.Tensor, _copy, (self.args, self.kwargs))

    @staticmethod
    def _outputs(call, args, kwargs):
        found = pytree.tree_leaves(call(*args, **kwargs))
        return [o for o in found if torch.is_tensor(o) and o.is_floating_point()]

    def _gradients(self, outputs, wanted):
        pairs = [(o, w) for o, w in zip(outputs, self.weights, strict=True) if o.requires_grad]
        if not pairs:
            return []
        weights = [w.to(o.device, o.dtype) for o, w in pairs]
        found = torch.autograd.grad([o for o, _ in pairs], wanted, weights, allow_unused=True)
        return _exact([torch.zeros_like(p) if g is None else g for g, p in zip(found, wanted, strict=True)])

    def _noisy(self, tensor, noise):
        if not noise or not tensor.is_floating_point():
            return tensor
        factor = 1 + noise * torch.randn(tensor.shape, generator=self.generator)
        changed = (tensor.detach() * factor.to(tensor.device)).to(tensor.dtype)
        return _like(changed, tensor)


@contextmanager
def untouched(model, device):
    """The model's buffers and all random number generators are afterwards what they were before."""
    buffers = [(b, b.detach().clone()) for b in model.buffers()]
    states, python = _generators(device), random.getstate()
    numpy = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        torch.set_rng_state(states[0])
        if len(states) > 1:
            torch.get_device_module(device).set_rng_state(states[1], device)
        random.setstate(python)
        if numpy is not None:
            sys.modules["numpy"].random.set_state(numpy)


def _generators(device):
    states = [torch.get_rng_state()]
    if device.type != "cpu":
        states.append(torch.get_device_module(device).get_rng_state(device))
    return states


def _learning(arguments):
    return [t for t in pytree.tree_leaves(arguments) if torch.is_tensor(t) and t.requires_grad]


def _copy(tensor):
    return _like(tensor.detach().clone(), tensor)


def _like(new, old):
    """`new` with the compiler's marks of `old`, and requires_grad as there."""
    return with_marks(new, old).requires_grad_(old.requires_grad)


def _doubled(tensor):
    if not tensor.is_floating_point():
        return tensor
    return tensor.detach().double().requires_grad_(tensor.requires_grad)


def _exact(tensors):
    return [t.detach().to("cpu", torch.float64).flatten() for t in tensors]

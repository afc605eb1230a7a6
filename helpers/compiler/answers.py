"""What a plan answers to a batch: outputs and gradients, taken without leaving a trace.

Nothing of the model is changed by asking: not `.grad`, buffers, random number generators or inputs.
"""

import random
import sys
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree

from .plan import device_of, with_marks


@dataclass
class Answer:
    """What a forward and backward pass returned, in float64 on the CPU, each tensor flat.

    Attributes:
        outputs: the model's floating outputs.
        buffers: its floating buffers afterwards.
        gradients: of the parameters, and of the inputs that require one.
    """

    outputs: list
    buffers: list
    gradients: list


class Question:
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

    def ask(self, call) -> Answer:
        """Outputs and gradients of `call`, a way to compute the model's forward."""
        with untouched(self.model, self.device), torch.enable_grad():
            args, kwargs = self._inputs()
            outputs = self._outputs(call, args, kwargs)
            wanted = [p for p in self.model.parameters() if p.requires_grad] + _learning((args, kwargs))
            gradients = self._gradients(outputs, wanted)
            buffers = filter(torch.is_floating_point, self.model.buffers())
            return Answer(_exact(outputs), _exact(buffers), gradients)

    def ask_in_double(self) -> Answer:
        """Eager's answer with everything in fp64 and without autocast; raises where that cannot be."""
        parameters = {n: _doubled(p) for n, p in self.model.named_parameters()}
        buffers = {n: _doubled(b.detach().clone()) for n, b in self.model.named_buffers()}
        args, kwargs = pytree.tree_map_only(torch.Tensor, _doubled, self._inputs())
        with (
            untouched(self.model, self.device), torch.enable_grad(), torch.autocast(self.device.type, enabled=False)
        ):  # fmt: skip
            doubled = {**parameters, **buffers}
            call = lambda *a, **k: torch.func.functional_call(self.model, doubled, a, k)  # noqa: E731
            outputs = self._outputs(call, args, kwargs)
            wanted = [p for p in parameters.values() if p.requires_grad] + _learning((args, kwargs))
            gradients = self._gradients(outputs, wanted)
        return Answer(_exact(outputs), _exact(filter(torch.is_floating_point, buffers.values())), gradients)

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
    """`new` with the marks of `old` for the compiler, and its wish for a gradient."""
    return with_marks(new, old).requires_grad_(old.requires_grad)


def _doubled(tensor):
    if not tensor.is_floating_point():
        return tensor
    return tensor.detach().double().requires_grad_(tensor.requires_grad)


def _exact(tensors):
    return [t.detach().to("cpu", torch.float64).flatten() for t in tensors]

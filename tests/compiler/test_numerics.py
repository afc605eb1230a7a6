"""The numerics check: sound plans pass, planted faults do not, and nothing of the model is touched."""

import copy
from dataclasses import dataclass

import plans
import pytest
import torch
from torch import nn

from helpers.compiler import Plan
from helpers.compiler.numerics import ALLOWED, NumericsCheck
from helpers.training import models


def errors(model, call, *args, bf16=False, **kwargs):
    """Those of `call`, a function of a copy of the model and the inputs."""
    return NumericsCheck(model, type(model).forward, args, kwargs).errors(Plan(bf16=bf16), call)


def is_sound(*args, **kwargs):
    return max(errors(*args, **kwargs)) <= ALLOWED


LONG = [pytest.param(name, False, marks=pytest.mark.long) for name in ("silunet", "transformer", "resnet8")]


@pytest.mark.parametrize("name, bf16", [("silu_mlp", True), *LONG])
def test_faults_are_told_from_rounding_on_real_models(name, bf16):
    torch.manual_seed(0)
    model, inputs = models.build(name, 10), torch.randn(8, 3, 16, 16)
    sound = Plan(bf16=bf16, channels_last=True).make(type(model).forward)
    assert is_sound(model, sound, inputs, bf16=bf16)
    assert not is_sound(model, lambda m, x: sound(m, x) * 1.05, inputs, bf16=bf16)


@pytest.mark.parametrize("seed", range(4))
def test_a_unit_at_its_kink_is_no_fault(seed):
    """The gradient of ReLU jumps at zero: rounding decides the side, and neither is wrong."""

    class Kink(nn.Linear):
        def forward(self, x, nudge=0.0):
            return (super().forward(x) + nudge).relu()

    torch.manual_seed(seed)
    model, inputs = Kink(64, 64), torch.randn(32, 64)
    with torch.no_grad():  # put one unit exactly at its kink
        model.bias -= nn.Linear.forward(model, inputs)[0] * torch.eye(64)[0]
    for nudge in (-1e-7, 1e-7):
        assert is_sound(model, lambda m, x, nudge=nudge: m(x, nudge), inputs)
    assert not is_sound(model, lambda m, x: m(x, 0.05), inputs)


@pytest.mark.parametrize("part", ["outputs", "gradients", "nan", "buffers"])
def test_each_part_is_compared(part):
    torch.manual_seed(0)
    model, inputs = plans.conv_net(), torch.randn(8, 3, 8, 8)

    def call(copy, x):
        if part == "buffers":
            copy[1].running_mean += 0.1
        found = copy(x)
        wrong = {"outputs": found * 1.05, "gradients": found.detach() + 0 * found, "nan": found * float("nan")}
        return wrong.get(part, found)

    outputs, gradients = errors(model, call, inputs)
    assert (outputs > ALLOWED) == (part != "gradients") and (gradients > ALLOWED) == (part != "buffers")


class Louder(torch.autograd.Function):
    """The identity, whose gradient is 5 % too large."""

    forward = staticmethod(lambda ctx, x: x.clone())
    backward = staticmethod(lambda ctx, gradient: gradient * 1.05)


@dataclass
class Output:
    scores: torch.Tensor


class Fourier(nn.Module):
    """Complex weights, and outputs in a container; what it keeps may be part of a loss."""

    def __init__(self, wrap):
        super().__init__()
        self.wrap, self.weight = wrap, nn.Parameter(torch.randn(8, 8, dtype=torch.cfloat))

    def forward(self, x, fault=""):
        weight = torch.complex(self.weight.real, self.weight.imag * (1.05 if fault == "imaginary" else 1))
        self.hidden = torch.fft.fft(x) @ weight
        self.hidden = Louder.apply(self.hidden) if fault == "kept" else self.hidden
        scores = torch.view_as_real(self.hidden)
        return self.wrap(Louder.apply(scores) if fault == "outputs" else scores)


WRAPS = {
    "dataclass": Output,
    "nested": lambda scores: {"a": [{"scores": scores}]},
    "complex": torch.view_as_complex,
}


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("fault", ["imaginary", "outputs", "kept"])
def test_faults_are_found_in_complex_weights_any_container_and_what_the_model_keeps(wrap, fault):
    torch.manual_seed(0)
    model, inputs = Fourier(WRAPS[wrap]), torch.randn(16, 8)
    assert is_sound(model, lambda m, x: m(x), inputs)
    assert not is_sound(model, lambda m, x: m(x, fault), inputs)


def test_a_check_leaves_no_trace():
    model, inputs = plans.Everything(), torch.randint(0, 20, (6, 5))
    optimizer = torch.optim.Adam(model.parameters())
    model(inputs)["scores"].sum().backward()
    optimizer.step()
    gradients = lambda: {n: p.grad for n, p in model.named_parameters()}  # noqa: E731
    everything = lambda: (model.state_dict(), gradients(), optimizer.state_dict(), torch.get_rng_state())  # noqa: E731
    before = copy.deepcopy(everything())
    assert is_sound(model, lambda m, *a, **k: m(*a, **k), inputs, scale=2.0)
    torch.testing.assert_close(everything(), before, rtol=0, atol=0)

"""The profile of a training step: every moment counted once, under the kind that the operator has by its nature."""

import copy

import pytest
import torch
from torch import nn

from helpers.compiler import operators
from helpers.compiler.operators import (
    CONVOLUTION,
    FUSED,
    KINDS,
    MATMUL,
    NORMALISATION,
    OTHER,
    POINTWISE,
    REDUCTION,
    Profile,
)
from helpers.training import models

IMAGES, LABELS = torch.randn(4, 3, 16, 16), torch.arange(4)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def profiled(model, inputs=IMAGES, targets=LABELS, **settings):
    return operators.profile(model, inputs, targets, **{"steps": 5, "warm_up": 1, **settings})


def seen(make, holds):
    """A profile of which `holds` is true; a busy machine may disturb some."""
    return next((found for found in (make() for _ in range(4)) if holds(found)), None) or make()


def squares(outputs, targets):
    return (outputs * outputs).mean()


def test_shares_sum_to_one_and_the_step_is_in_them():
    whole = lambda found: 0.3 < sum(found.seconds.values()) / found.step_s < 3  # noqa: E731
    found = seen(lambda: profiled(models.build("resnet8", 10)), whole)
    assert sum(found.share.values()) == pytest.approx(1) and list(found.share) == list(KINDS)
    assert whole(found) and min(found.seconds.values()) >= 0
    assert all(found.share[kind] > 0 for kind in (CONVOLUTION, NORMALISATION, POINTWISE, REDUCTION, MATMUL))
    assert found.share[OTHER] < 0.01


def test_the_model_is_left_as_it_was():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.LazyLinear(10))
    nn.functional.cross_entropy(model(IMAGES), LABELS).backward()
    images = IMAGES.clone().requires_grad_()
    everything = lambda: (model.state_dict(), [p.grad for p in model.parameters()], torch.get_rng_state())  # noqa: E731
    before = copy.deepcopy(everything())
    profiled(model, images)
    torch.testing.assert_close(everything(), before, rtol=0, atol=0)
    assert images.grad is None and model.training


def test_the_profiler_is_silent_and_refuses_what_it_cannot_time(capfd):
    profiled(nn.Flatten(), torch.randn(4, 10, requires_grad=True))
    assert capfd.readouterr() == ("", "")
    for step, steps in ((lambda: torch.ones(1) + 1, 4), (lambda: None, 5)):
        with pytest.raises(ValueError):
            operators.profile_compiled(step, steps=steps)


def test_the_bound_is_amdahls():
    half = Profile({MATMUL: 0.05, POINTWISE: 0.03, NORMALISATION: 0.02}, 0.1, 9)
    assert half.share == pytest.approx({MATMUL: 0.5, POINTWISE: 0.3, NORMALISATION: 0.2})
    assert half.pointwise_bound == pytest.approx(2)
    assert Profile({CONVOLUTION: 0.1}, 0.1, 9).pointwise_bound == 1
    assert Profile({POINTWISE: 0.1}, 0.1, 9).pointwise_bound == float("inf")


def test_names_of_other_things_and_of_the_loops_that_inductor_has_written():
    node = "autograd::engine::evaluate_function: AddmmBackward0"
    for name in ("AddmmBackward0", "torch::autograd::AccumulateGrad", "my block", "my_fused_block", node):
        assert operators.kind_of(name) is None
    for name in ("graph_0_cpp_fused__native_batch_norm_legit_silu_1", "cpp_fused_add_0", "triton_poi_fused_add_0"):
        assert operators.kind_of(name) == FUSED


def test_a_compiled_step_is_profiled_as_it_is_and_set_in_a_table():
    step = torch.nn.Linear(8, 8)
    found = operators.profile_compiled(lambda: step(torch.ones(4, 8)).sum().backward(), steps=5, warm_up=1)
    assert found.seconds[MATMUL] > 0 and found.launches > 0
    lines = operators.in_ms({"eager": found, "compiled": found}).splitlines()
    *parts, together, plain = (float(line.split()[-1]) for line in lines[1:])
    assert together == pytest.approx(sum(parts), abs=0.2)
    assert plain == pytest.approx(1000 * found.step_s, abs=0.1)

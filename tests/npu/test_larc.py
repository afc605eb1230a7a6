"""apex.parallel.LARC: each step is what the formula gives by hand, alone and under amp."""

import math

import pytest
import torch
from npu_ranks import on_npu
from torch import nn

import helpers
from platforms.npu.apex import amp
from platforms.npu.apex.parallel import LARC

LR, MOMENTUM, DECAY, TRUST = 0.5, 0.9, 0.1, 0.02
FACTORS = [3.0, 0.01, 2.0]  # of the loss ½ Σ factor · ‖weight‖², whose gradient is factor · weight


@pytest.fixture(autouse=True)
def fresh_amp():
    yield
    amp._reset()


def made(kind, clip, start=(1.0, -2.0, 0.5)):
    """Three weights, the last of them zero, and one that gets no gradient."""
    starts = [torch.tensor(start), torch.tensor([4.0, 3.0]), torch.zeros(2), torch.ones(2)]
    weights = [nn.Parameter(value.to(kind)) for value in starts]
    groups = [{"params": weights[:1], "weight_decay": DECAY}, {"params": weights[1:]}]
    return weights, LARC(torch.optim.SGD(groups, lr=LR, momentum=MOMENTUM), trust_coefficient=TRUST, clip=clip)


def by_hand(clip, steps, decays=(DECAY, 0.0, 0.0)):
    """The same in Python's floats."""
    weights = [[1.0, -2.0, 0.5], [4.0, 3.0], [0.0, 0.0]]
    buffers = [[0.0] * len(weight) for weight in weights]
    for _ in range(steps):
        for weight, buffer, factor, decay in zip(weights, buffers, FACTORS, decays, strict=True):
            gradient = [factor * w for w in weight]
            size, slope = math.hypot(*weight), math.hypot(*gradient)
            if size and slope:
                rate = TRUST * size / (slope + decay * size + 1e-8)
                rate = min(rate / LR, 1) if clip else rate
                gradient = [rate * (g + decay * w) for g, w in zip(gradient, weight, strict=True)]
            for place, g in enumerate(gradient):
                buffer[place] = MOMENTUM * buffer[place] + g
                weight[place] -= LR * buffer[place]
    return [*weights, [1.0, 1.0]]


def steps_are_those_by_hand(kind):
    for clip in (True, False):
        weights, optimizer = made(kind, clip)
        for _ in range(4):
            optimizer.zero_grad()
            (0.5 * sum(f * w.square().sum() for f, w in zip(FACTORS, weights[:3], strict=True))).backward()
            optimizer.step()
        for found, expected in zip(weights, by_hand(clip, 4), strict=True):
            assert found.device.type == kind and torch.allclose(found.cpu(), torch.tensor(expected), rtol=1e-5)
        assert [group["weight_decay"] for group in optimizer.param_groups] == [DECAY, 0]
        # Both ways of the minimum occur: clipped to 1 for the flat second weight, and not for the first.
        rates = [TRUST / (f + d) / LR for f, d in zip(FACTORS[:2], (DECAY, 0.0), strict=True)]
        assert rates[0] < 1 < rates[1]


def test_steps_are_those_by_hand():
    steps_are_those_by_hand("cpu")


@on_npu
def test_steps_on_a_card_are_those_by_hand():
    steps_are_those_by_hand("npu")
    for level in ("O1", "O2"):
        goes_on_under_amp("npu", level)
        amp._reset()


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_it_goes_through_amp(level):
    goes_on_under_amp("cpu", level)


def goes_on_under_amp(kind, level):
    """As apex takes it: initialize and scale_loss get the LARC; an overflow changes nothing; the rates stay local."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2).to(kind)
    larc = LARC(torch.optim.SGD(model.parameters(), lr=LR, weight_decay=DECAY), TRUST)
    model, optimizer = amp.initialize(model, larc, opt_level=level, loss_scale=64.0, verbosity=0)
    assert optimizer is larc
    x = torch.ones(3, 4, device=kind)
    for factor in (1.0, 1e38, 1.0):
        if factor > 1 and level in ("O0", "O3"):  # nothing is looked at where amp is not dynamic and has no masters
            continue
        before = [p.detach().clone() for p in amp.master_params(optimizer)]
        optimizer.zero_grad()
        with amp.scale_loss(model(x).square().mean() * factor, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
        for old, new in zip(before, amp.master_params(optimizer), strict=True):
            moved = (new - old).float().norm() / old.float().norm()
            assert moved == 0 if factor > 1 else 0 < moved < 1.01 * TRUST, (level, factor)
        assert optimizer.param_groups[0]["weight_decay"] == DECAY


def on_ranks():
    with helpers.distributed("cpu") as world:
        torch.manual_seed(world.rank)
        model = nn.Linear(4, 2)
        larc = LARC(torch.optim.SGD(model.parameters(), lr=LR))
        model, larc = amp.initialize(model, larc, opt_level="O2", verbosity=0)
        ddp = nn.parallel.DistributedDataParallel(model)
        for _ in range(2):
            with amp.scale_loss(ddp(torch.full((3, 4), 1.0 + world.rank)).square().mean(), larc) as scaled:
                scaled.backward()
            larc.step()
        return [p.detach().clone() for p in amp.master_params(larc)]


@pytest.mark.long
def test_ranks_scale_by_the_same_norms():
    """Each rank began with other weights, of which DDP sent those of rank 0."""
    first, second = helpers.launch(on_ranks, 2, timeout=300)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_checkpoint_of_it_is_that_of_the_optimizer():
    weights, optimizer = made("cpu", True)
    sum(w.sum() for w in weights).backward()
    optimizer.step()
    _, other = made("cpu", True)
    other.load_state_dict(optimizer.state_dict())
    assert torch.equal(*(it.state[it.param_groups[0]["params"][0]]["momentum_buffer"] for it in (optimizer, other)))
    with pytest.raises(TypeError, match="optimizer of torch.optim"):
        LARC(weights)

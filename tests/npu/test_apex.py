"""apex.amp: a level trains as the precision of that name; overflows, checkpoints, what apex lets pass or refuses."""

import contextlib
import functools
import io
import warnings

import pytest
import torch
import torch.nn.functional as F
from npu_ranks import on_npu
from torch import nn

from helpers import distributed, launch
from helpers.training.precision import MixedPrecision
from platforms.npu.apex import amp

LEVELS = ("O0", "O1", "O2", "O3")


@pytest.fixture(autouse=True)
def fresh_amp(monkeypatch):
    monkeypatch.setattr(amp, "_latest", None)


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def made(kind="cpu", seed=0, net=Net, momentum=0.9):
    torch.manual_seed(seed)
    model = net().to(kind)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)


def initialized(level, kind="cpu", loss_scale=None, **how):
    return amp.initialize(*made(kind, **how), opt_level=level, loss_scale=loss_scale, verbosity=0)


def batches(count, kind="cpu", start=0):
    for step in range(start, start + count):
        generator = torch.Generator().manual_seed(100 + step)
        yield torch.randn(8, 6, generator=generator).to(kind), torch.arange(8).remainder(3).to(kind)


def backward(loss, optimizer):
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()


def train(model, optimizer, steps=3, start=0, planted=None):
    """A few steps; at step `planted` the loss is so big that its gradients overflow."""
    for step, (x, y) in enumerate(batches(steps, next(model.parameters()).device, start), start):
        optimizer.zero_grad()
        backward(F.cross_entropy(model(x), y) * (1e38 if step == planted else 1), optimizer)
        optimizer.step()


def weights(source):
    values = source.parameters() if isinstance(source, nn.Module) else amp.master_params(source)
    return [value.detach().clone() for value in values]


def same(one, other):
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def scale():
    return amp.state_dict()["loss_scaler0"]["loss_scale"]


# -- what a level computes ----------------------------------------------------------------

GOLDEN = [  # level, loss scale, the step whose gradients overflow
    ("O0", None, None),
    ("O1", 1024.0, None),
    ("O1", "dynamic", 2),
    ("O2", 512.0, None),
    ("O2", "dynamic", 2),
    ("O3", None, None),
]


def trains_as_the_precision(kind, level, loss_scale, planted):
    model, optimizer = initialized(level, kind, loss_scale)
    train(model, optimizer, 5, planted=planted)
    twin, _ = made(kind)
    start = 2.0**16 if loss_scale == "dynamic" else loss_scale or 1.0
    precision = MixedPrecision(level, twin, kind, init_scale=start)
    plain = torch.optim.SGD(precision.parameters, lr=0.05, momentum=0.9)
    for step, (x, y) in enumerate(batches(5, kind)):
        precision.zero_grad()
        precision.backward(F.cross_entropy(precision.forward(twin, x), y) * (1e38 if step == planted else 1))
        precision.step(plain)
    assert same(weights(model), weights(twin)) and same(weights(optimizer), [p.detach() for p in precision.parameters])
    assert scale() == (precision.scaler.get_scale() if loss_scale else 1.0)
    assert precision.skipped == (planted is not None)
    assert level == "O3" or {p.dtype for p in amp.master_params(optimizer)} == {torch.float32}


@pytest.mark.parametrize("level, loss_scale, planted", GOLDEN)
def test_a_level_is_the_precision_of_that_name(level, loss_scale, planted):
    trains_as_the_precision("cpu", level, loss_scale, planted)


@on_npu
def test_the_levels_on_the_emulated_card():
    for case in GOLDEN:
        trains_as_the_precision("npu", *case)
    resumes_bitwise("npu", "O2")


# -- the scale ----------------------------------------------------------------------------


def test_schedulers_made_before_and_after_go_on_without_a_warning():
    for first in ("scheduler", "amp"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model, optimizer = initialized("O2") if first == "amp" else made()
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            if first == "scheduler":
                amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
            before = weights(optimizer)
            train(model, optimizer, 1, planted=0)
            scheduler.step()
            assert same(before, weights(optimizer)), "the scheduler went around amp"
            train(model, optimizer, 1)
        assert not same(before, weights(optimizer)) and optimizer.param_groups[0]["lr"] == 0.05 / 2


# -- checkpoints --------------------------------------------------------------------------


def saved(model, optimizer):
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "amp": amp.state_dict()}, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def resumes_bitwise(kind, level, before=False, **how):
    """A run that was saved and loaded goes on as one that was not stopped; `before`: loaded before `initialize`."""
    model, optimizer = initialized(level, kind, **how)
    train(model, optimizer, 3, planted=1 if level in ("O1", "O2") else None)
    state = saved(model, optimizer)
    assert {v.dtype for v in state["model"].values()} == {torch.float32, torch.int64}
    train(model, optimizer, 3, start=3)
    end = weights(model), weights(optimizer), amp.state_dict()
    other, its_optimizer = (made if before else functools.partial(initialized, level))(kind, seed=1, **how)
    other.load_state_dict(state["model"])
    its_optimizer.load_state_dict(state["optimizer"])
    if before:
        amp.initialize(other, its_optimizer, opt_level=level, verbosity=0)
    amp.load_state_dict(state["amp"])
    train(other, its_optimizer, 3, start=3)
    assert same(end[0], weights(other)) and same(end[1], weights(its_optimizer)) and end[2] == amp.state_dict()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("before", [False, True])
def test_a_resumed_training_is_bitwise_the_one_that_was_not_stopped(level, before):
    resumes_bitwise("cpu", level, before)
    resumes_bitwise("cpu", level, before, momentum=0)  # an optimizer without a state


def test_a_scale_is_loaded_unless_it_is_fixed():
    state = {"loss_scaler0": {"loss_scale": 4.0, "unskipped": 9}}
    with pytest.raises(RuntimeError):
        amp.load_state_dict(state)  # before initialize
    assert amp.state_dict() == {}
    initialized("O2")
    amp.load_state_dict(state)
    assert amp.state_dict() == state
    initialized("O2", loss_scale=64)
    amp.load_state_dict(state)
    assert amp.state_dict() == {"loss_scaler0": {"loss_scale": 64.0, "unskipped": 9}}
    with pytest.warns(UserWarning):
        amp.load_state_dict({})


# -- what is refused ----------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"loss_scale": "fast"}, {"opt_level": "01"}], ids=str)
def test_bad_settings_are_refused_at_once(options):
    model, optimizer = made()
    with pytest.raises(ValueError):
        amp.initialize(model, optimizer, **options)
    amp.initialize(model, optimizer, loss_scale="128", verbosity=0)  # nothing had happened to them
    assert scale() == 128


def test_models_that_cannot_be_initialized_are_refused():
    twice = nn.Sequential(initialized("O1")[0])
    for model in (nn.Sequential(nn.DataParallel(Net())), torch.compile(Net(), backend="eager"), twice):
        with pytest.raises(RuntimeError):
            amp.initialize(model)
    for model, error in ((Net().half(), ValueError), ([Net()], TypeError)):
        with pytest.raises(error):
            amp.initialize(model)


def test_a_scale_wants_an_initialized_optimizer_and_a_tensor():
    _, optimizer = made()
    with pytest.raises(RuntimeError, match="amp.initialize"):
        backward(torch.ones((), requires_grad=True), optimizer)
    with pytest.raises(TypeError):
        backward(1.5, initialized("O2")[1])


# -- ranks --------------------------------------------------------------------------------


def on_ranks(level, no_sync):
    """A training on this rank: from weights of its own, with an overflow on rank 1 at step 2."""
    with distributed("cpu") as world, contextlib.redirect_stdout(io.StringIO()) as printed:
        model, optimizer = amp.initialize(*made(seed=world.rank), opt_level=level)
        ddp = nn.parallel.DistributedDataParallel(model)
        seen = []
        for step in range(5):
            before = weights(optimizer)
            for number, (x, y) in enumerate(batches(2, start=2 * step)):
                with ddp.no_sync() if no_sync and number == 0 else contextlib.nullcontext():
                    loss = F.cross_entropy(ddp(x.chunk(2)[world.rank]), y.chunk(2)[world.rank]) / 2
                    backward(loss * (1e38 if (step, world.rank) == (2, 1) else 1), optimizer)
            optimizer.step()
            optimizer.zero_grad()
            seen.append((not same(before, weights(optimizer)), scale() / 2**16))
        return seen, weights(optimizer), weights(model), printed.getvalue()


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_ranks_agree_on_steps_scales_and_weights(level):
    for no_sync in (False, True):
        first, second = launch(on_ranks, 2, level, no_sync, timeout=900)
        assert first[0] == second[0] == [(True, 1), (True, 1), (False, 0.5), (True, 0.5), (True, 0.5)]
        assert same(first[1], second[1]) and same(first[2], second[2]), "the ranks went apart"
        assert first[3].count("amp: ") == 2 and second[3] == "", "only rank 0 prints"

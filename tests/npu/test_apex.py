"""apex.amp on torch: levels compute what they say, an overflow skips one step, checkpoints go on bitwise."""

import contextlib
import copy
import io
import itertools
import pickle
import types
import warnings
from collections import namedtuple

import pytest
import torch
import torch.nn.functional as F
from npu_ranks import on_npu
from torch import nn

import helpers
from helpers import launch
from platforms.npu.apex import amp
from platforms.npu.apex import session as scaling

LEVELS = ("O0", "O1", "O2", "O3")


@pytest.fixture(autouse=True)
def fresh_amp():
    before, threads = (torch.sigmoid, F.binary_cross_entropy), torch.get_num_threads()
    torch.set_num_threads(1)  # for these sizes more only wait for each other
    yield
    amp._reset()
    torch.set_num_threads(threads)
    assert before == (torch.sigmoid, F.binary_cross_entropy), "a patched function was left behind"


ON_DEVICES = []


def on_devices(test):
    """The test on the CPU and, where there is one, on CUDA; see also `test_the_emulated_card`."""
    ON_DEVICES.append(test)
    cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
    return pytest.mark.parametrize("kind", ["cpu", pytest.param("cuda", marks=cuda)])(test)


@on_npu
def test_the_emulated_card():
    """Whatever holds on other devices holds there; one rank does for all."""
    for test in ON_DEVICES:
        test("npu")
        amp._reset()


class Net(nn.Module):
    """Linear layers and a batch norm, which note the formats that they compute in."""

    def __init__(self, inputs=6, outputs=3):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(inputs, 8), nn.BatchNorm1d(8), nn.Linear(8, outputs)
        self.register_buffer("shift", torch.full((8,), 0.1))
        self.seen = None

    def forward(self, x):
        hidden = self.first(x)
        out = self.last(torch.tanh(self.norm(hidden)) + self.shift.to(hidden.dtype))
        self.seen = x.dtype, hidden.dtype, out.dtype
        return out


def made(kind="cpu", net=Net, make=torch.optim.SGD, seed=0, **settings):
    torch.manual_seed(seed)
    model = net().to(kind)
    settings = settings or {"lr": 0.05, "momentum": 0.9}
    return model, make(model.parameters(), **settings)


def initialized(level, kind="cpu", loss_scale=None, options=None, **settings):
    model, optimizer = made(kind, **settings)
    return amp.initialize(model, optimizer, opt_level=level, loss_scale=loss_scale, verbosity=0, **(options or {}))


def batches(count, kind="cpu", start=0):
    for step in range(start, start + count):
        generator = torch.Generator().manual_seed(100 + step)
        yield torch.randn(8, 6, generator=generator).to(kind), torch.arange(8).remainder(3).to(kind)


X, Y = next(batches(1))


def train(model, optimizer, steps=3, start=0, planted=None):
    """A few steps; at step `planted` the loss is so big that its gradients overflow."""
    for step, (x, y) in enumerate(batches(steps, next(model.parameters()).device, start), start):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        backward(loss * 1e38 if step == planted else loss, optimizer)
        optimizer.step()


def backward(*args, **kwargs):
    """`backward` of a scaled loss; the arguments are those of `scale_loss`."""
    with amp.scale_loss(*args, **kwargs) as scaled:
        scaled.backward()


def weights(source):
    values = source.parameters() if isinstance(source, nn.Module) else amp.master_params(source)
    return [value.detach().clone() for value in values]


def same(one, other):
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# -- what a level computes ------------------------------------------------------------------


@on_devices
def test_formats_of_each_level(kind):
    half, single = torch.float16, torch.float32
    for level, weight, norm, seen in (
        ("O0", single, single, (single, single, single)),
        ("O1", single, single, (single, half, half)),
        ("O2", half, single, (half, half, half)),
        ("O3", half, half, (half, half, half)),
    ):
        model, optimizer = initialized(level, kind)
        x, _ = next(batches(1, kind))
        assert model(x).dtype == single, "a loss wants float32"
        assert model.seen == seen, level
        assert (model.first.weight.dtype, model.norm.weight.dtype, model.norm.running_var.dtype) == (weight, norm, norm)
        assert model.shift.dtype == weight and model.norm.num_batches_tracked.dtype == torch.int64
        masters = {p.dtype for p in amp.master_params(optimizer)}
        assert masters == {half if level == "O3" else single}


@on_devices
def test_o1_is_autocast_and_gradscaler(kind):
    for scale in (1.0, 1024.0, "dynamic"):
        is_autocast_and_gradscaler(kind, scale)


def is_autocast_and_gradscaler(kind, scale):
    model, optimizer = initialized("O1", kind, scale)
    twin, plain = made(kind)
    start = 2.0**16 if scale == "dynamic" else scale
    scaler = torch.amp.GradScaler(kind, init_scale=start, growth_interval=2000, enabled=scale != 1.0)
    planted = 2 if scale == "dynamic" else None
    train(model, optimizer, 5, planted=planted)
    for step, (x, y) in enumerate(batches(5, kind)):
        plain.zero_grad()
        with torch.autocast(kind, torch.float16):
            outputs = twin(x)
        loss = F.cross_entropy(outputs.float(), y)
        scaler.scale(loss * 1e38 if step == planted else loss).backward()
        scaler.step(plain)
        scaler.update()
    assert same(weights(model), weights(twin))
    assert scale != "dynamic" or amp.state_dict()["loss_scaler0"]["loss_scale"] == scaler.get_scale() == 2.0**15


@on_devices
def test_o2_is_a_half_model_with_float32_masters(kind):
    model, optimizer = initialized("O2", kind, 512.0)
    train(model, optimizer, 5)

    twin, _ = made(kind)
    for module in (twin.first, twin.last):
        module.half()
    masters = [p.detach().float().clone().requires_grad_() for p in twin.parameters()]
    plain = torch.optim.SGD(masters, lr=0.05, momentum=0.9)
    for x, y in batches(5, kind):
        twin.zero_grad()
        (512 * F.cross_entropy(twin(x.half()).float(), y)).backward()
        for p, master in zip(twin.parameters(), masters, strict=True):
            master.grad = p.grad.float() / 512
        plain.step()
        with torch.no_grad():
            for p, master in zip(twin.parameters(), masters, strict=True):
                p.copy_(master)
    assert same(weights(optimizer), [m.detach() for m in masters])
    assert same(weights(model), weights(twin))
    rounded = zip(weights(model), weights(optimizer), strict=True)
    assert any(not torch.equal(w.float(), m) for w, m in rounded), "nothing was rounded, so masters were not needed"


@on_devices
def test_o0_and_o3_are_ordinary_training(kind):
    for level, cast in (("O0", torch.float32), ("O3", torch.float16)):
        model, optimizer = initialized(level, kind)
        train(model, optimizer, 4)
        twin, _ = made(kind)
        twin.to(cast)
        plain = torch.optim.SGD(twin.parameters(), lr=0.05, momentum=0.9)
        for x, y in batches(4, kind):
            plain.zero_grad()
            F.cross_entropy(twin(x.to(cast)).float(), y).backward()
            plain.step()
        assert same(weights(model), weights(twin))
        assert amp.state_dict() == {"loss_scaler0": {"loss_scale": 1.0, "unskipped": 0}}


def test_overrides_change_one_part_of_a_level():
    model, optimizer = initialized("O2", options={"keep_batchnorm_fp32": "False", "master_weights": False})
    assert model.norm.weight.dtype == torch.float16 and next(amp.master_params(optimizer)) is model.first.weight
    model, optimizer = initialized("O3", options={"master_weights": True, "keep_batchnorm_fp32": True})
    assert model.norm.weight.dtype == next(amp.master_params(optimizer)).dtype == torch.float32
    model, _ = initialized("O2", options={"cast_model_type": torch.bfloat16, "cast_model_outputs": torch.float64})
    assert model.first.weight.dtype == torch.bfloat16 and model(torch.randn(2, 6)).dtype == torch.float64
    model, _ = initialized("O1", options={"patch_torch_functions": False})
    model(torch.randn(2, 6))
    assert model.seen[1] == torch.float32


def test_batch_norm_without_weights_is_cast_like_the_rest():
    """A kernel takes half inputs beside float32 statistics only where there are float32 weights, too."""
    model, _ = initialized("O2", net=lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4, affine=False)))
    assert model[1].running_mean.dtype == torch.float16 and model(torch.randn(8, 6)).isfinite().all()


Pair = namedtuple("Pair", "one two")


class Batch:
    """A batch class that casts itself, as apex allows."""

    def __init__(self, tensor):
        self.tensor = tensor

    def to(self, dtype):
        return Batch(self.tensor.to(dtype))


def test_inputs_and_outputs_are_cast_wherever_they_are():
    class Takes(nn.Linear):
        def forward(self, pair, *, more, own, kept):
            self.seen = pair.one.dtype, pair.two.dtype, more["deep"][0].dtype, own.tensor.dtype, kept
            out = super().forward(pair.one)
            return {"list": [out, (out, 3)], "pair": Pair(out, "text")}

    model = amp.initialize(Takes(2, 2), opt_level="O2", verbosity=0)
    x, labels = torch.ones(1, 2), torch.ones(1, dtype=torch.int64)
    out = model(Pair(x, labels), more={"deep": [x]}, own=Batch(x), kept=nn.Linear)
    half, single = torch.float16, torch.float32
    assert model.seen == (half, torch.int64, half, half, nn.Linear)
    tensors = [out["list"][0], out["list"][1][0], out["pair"].one]
    assert {t.dtype for t in tensors} == {single} and out["pair"].two == "text" and out["list"][1][1] == 3


# -- overflow -------------------------------------------------------------------------------


@on_devices
def test_an_overflow_skips_exactly_one_step_and_halves_the_scale(kind):
    for level in ("O1", "O2", "O3"):
        model, optimizer = initialized(level, kind, "dynamic")
        moved, scales = [], []
        for step in range(5):
            before = weights(model), weights(optimizer), copy.deepcopy(optimizer.state_dict()["state"])
            train(model, optimizer, 1, step, planted=2)
            moved.append(not same(before[1], weights(optimizer)))
            scales.append(amp.state_dict()["loss_scaler0"])
            if step == 2:
                assert same(before[0], weights(model))
                assert level == "O2" or not model.last.weight.grad.isfinite().all(), "the gradients can still be seen"
                buffers = zip(before[2].values(), optimizer.state_dict()["state"].values(), strict=True)
                assert all(torch.equal(a["momentum_buffer"], b["momentum_buffer"]) for a, b in buffers)
        assert moved == [True, True, False, True, True]
        assert [s["loss_scale"] / 2**16 for s in scales] == [1, 1, 0.5, 0.5, 0.5]
        assert [s["unskipped"] for s in scales] == [1, 2, 0, 1, 2]
        assert all(w.isfinite().all() for w in weights(optimizer))


def test_a_half_loss_is_scaled_in_float32():
    _, optimizer = initialized("O1")
    with amp.scale_loss(torch.ones((), dtype=torch.float16, requires_grad=True), optimizer) as scaled:
        assert scaled.dtype == torch.float32 and scaled == 2**16
        scaled.backward()


def test_a_fixed_scale_skips_too_and_stays():
    model, optimizer = initialized("O2", loss_scale=128)
    before = weights(optimizer)
    train(model, optimizer, 1, planted=0)
    assert same(before, weights(optimizer))
    train(model, optimizer, 1)
    assert not same(before, weights(optimizer)) and amp.state_dict()["loss_scaler0"]["loss_scale"] == 128


def test_a_dynamic_scale_grows_within_its_limits(monkeypatch):
    assert scaling.WINDOW == 2000, "as in apex"
    monkeypatch.setattr(scaling, "WINDOW", 2)
    model, optimizer = initialized("O1", options={"max_loss_scale": 2.0**17, "min_loss_scale": 2.0**16})
    scales = []
    for step in range(8):
        train(model, optimizer, 1, step, planted=5)
        scales.append(amp._amp_state.loss_scalers[0].loss_scale() / 2**16)
    assert scales == [1, 2, 2, 2, 2, 1, 1, 2]
    for planted in (20, 21):
        train(model, optimizer, 1, planted, planted)
    assert amp._amp_state.loss_scalers[0].loss_scale() == 2**16
    assert scaling.LossScaler("dynamic", maximum=256.0).loss_scale() == 256


def test_gradients_that_overflow_at_every_scale_end_the_training():
    model, optimizer = initialized("O1")
    with pytest.raises(FloatingPointError, match="not the scale; look for NaN"):
        for _ in range(60):
            train(model, optimizer, 1, planted=0)


def test_the_check_can_be_delayed_until_the_step():
    model, optimizer = initialized("O1", net=lambda: nn.Linear(6, 3))
    before = weights(model)
    backward(F.cross_entropy(model(X), Y) * 1e38, optimizer, delay_overflow_check=True)
    assert amp.state_dict()["loss_scaler0"]["loss_scale"] == 2**16
    optimizer.step()
    assert same(before, weights(model)) and amp.state_dict()["loss_scaler0"]["loss_scale"] == 2**15
    optimizer.zero_grad()
    for factor, delay in ((1e38, True), (1.0, False)):
        backward(F.cross_entropy(model(X), Y) * factor, optimizer, delay_overflow_check=delay)
    optimizer.step()
    assert same(before, weights(model)) and amp.state_dict()["loss_scaler0"] == {"loss_scale": 2.0**14, "unskipped": 0}


@pytest.mark.parametrize(
    "make, settings",
    [
        (torch.optim.SGD, {"momentum": 0.9, "foreach": True}),
        (torch.optim.SGD, {"fused": True}),
        (torch.optim.Adam, {"foreach": False}),
        (torch.optim.Adam, {"fused": True}),
        (torch.optim.AdamW, {"foreach": True, "weight_decay": 0.1}),
        (torch.optim.RMSprop, {}),
        (torch.optim.Adagrad, {}),
    ],
)
def test_optimizers_of_torch_step_and_skip(make, settings):
    def net():  # no batch norm: before one, the gradient of a bias is but rounding, whose sign Adam follows
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    for level in ("O1", "O2"):
        model, optimizer = initialized(level, net=net, make=make, lr=0.01, **settings)
        twin, plain = made(net=net, make=make, lr=0.01, **settings)
        start = weights(twin)
        train(model, optimizer, 4, planted=1)
        for step, (x, y) in enumerate(batches(4)):
            if step != 1:
                plain.zero_grad()
                F.cross_entropy(twin(x), y).backward()
                plain.step()
        for ours, theirs, first in zip(weights(optimizer), weights(twin), start, strict=True):
            assert torch.allclose(ours, theirs, rtol=0, atol=2e-3) and not torch.equal(ours, first), level


@pytest.mark.parametrize("first", ["scheduler", "amp"])
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_schedulers_made_before_and_after_go_on_without_a_warning(level, first):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, optimizer = made()
        if first == "scheduler":
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
        if first == "amp":
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        before = weights(optimizer)
        train(model, optimizer, 1, planted=0)
        scheduler.step()
        assert same(before, weights(optimizer)), "the scheduler went around amp"
        train(model, optimizer, 1)
        scheduler.step()
    assert not same(before, weights(optimizer))
    assert optimizer.param_groups[0]["lr"] == 0.05 / 4


# -- several of everything ------------------------------------------------------------------


def manual(losses, parameters):
    """Gradients of the sum of `losses`, each scaled by 256 on its way."""
    total = [torch.zeros_like(p, dtype=torch.float32) for p in parameters]
    for loss in losses:
        for sum_, new in zip(total, torch.autograd.grad(256 * loss, parameters), strict=True):
            sum_.add_(new.float() / 256)
    return total


@on_devices
def test_losses_of_one_optimizer_add_up(kind):
    for level in ("O1", "O2"):
        model, optimizer = initialized(level, kind, 256, {"num_losses": 2}, net=lambda: nn.Linear(6, 3))
        (x, y), (x2, y2) = batches(2, kind)
        expected = manual([F.cross_entropy(model(x), y), F.cross_entropy(model(x2), y2)], list(model.parameters()))
        for loss_id, (a, b) in enumerate([(x, y), (x2, y2)]):
            backward(F.cross_entropy(model(a), b), optimizer, loss_id)
        assert same([p.grad for p in amp.master_params(optimizer)], expected)
        assert [s["unskipped"] for s in amp.state_dict().values()] == [1, 1]


def gan_step(models, optimizers, x, factors):
    """A step of a GAN: two losses for the discriminator, one for the generator."""
    (generator, discriminator), (of_generator, of_discriminator) = models, optimizers
    judged, fake, one, zero = F.binary_cross_entropy_with_logits, generator(x), torch.ones(8, 1), torch.zeros(8, 1)
    of_discriminator.zero_grad()
    for loss_id, (image, label) in enumerate([(x, one), (fake.detach(), zero)]):
        backward(judged(discriminator(image), label) * factors[loss_id], of_discriminator, loss_id)
    of_discriminator.step()
    of_generator.zero_grad()
    backward(judged(discriminator(fake), one) * factors[2], of_generator, loss_id=2)
    of_generator.step()


def test_each_loss_has_its_own_scale_and_skips_its_own_optimizers():
    models = [nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)), nn.Linear(6, 1)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    models, optimizers = amp.initialize(models, optimizers, opt_level="O2", num_losses=3, verbosity=0)
    before = [weights(o) for o in optimizers]
    gan_step(models, optimizers, next(batches(1))[0], factors=(1.0, 1e38, 1.0))
    assert [s["loss_scale"] / 2**16 for s in amp.state_dict().values()] == [1, 0.5, 1]
    assert [same(b, weights(o)) for b, o in zip(before, optimizers, strict=True)] == [False, True]
    gan_step(models, optimizers, next(batches(1))[0], factors=(1.0, 1.0, 1e38))
    assert [s["loss_scale"] / 2**16 for s in amp.state_dict().values()] == [1, 0.5, 0.5]
    assert not same(before[1], weights(optimizers[1])), "the skip outlived its step"


def test_one_loss_for_two_optimizers_skips_both_or_none():
    nets = [nn.Linear(6, 4), nn.Linear(4, 3)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    nets, optimizers = amp.initialize(nets, optimizers, opt_level="O2", verbosity=0)
    (x, y), before = next(batches(1)), [weights(o) for o in optimizers]
    for factor, stays in ((1e38, True), (1.0, False)):
        backward(F.cross_entropy(nets[1](nets[0](x)), y) * factor, optimizers)
        for optimizer, start in zip(optimizers, before, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            assert same(start, weights(optimizer)) == stays


def test_what_a_pass_does_not_touch_keeps_its_gradient():
    parts = [nn.Linear(6, 3), nn.Linear(6, 3)]
    both = nn.ModuleList(parts)
    _, optimizer = amp.initialize(both, torch.optim.SGD(both.parameters(), lr=0.1), opt_level="O1", verbosity=0)
    for part, (x, y) in zip(parts, batches(2), strict=True):
        backward(F.cross_entropy(part(x), y), optimizer)
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in both.parameters())


@on_devices
def test_gradients_accumulate_over_passes(kind):
    for level, delays in itertools.product(("O1", "O2"), [(True, True, False), (False,) * 3, (False, True, False)]):
        model, optimizer = initialized(level, kind, net=lambda: nn.Linear(6, 3))
        expected, _ = made(kind, net=lambda: nn.Linear(6, 3))
        for delay, (x, y) in zip(delays, batches(3, kind), strict=True):
            (F.cross_entropy(expected(x), y) / 3).backward()
            backward(F.cross_entropy(model(x), y) / 3, optimizer, delay_unscale=delay)
        for p, exact in zip(amp.master_params(optimizer), expected.parameters(), strict=True):
            assert torch.allclose(p.grad, exact.grad, rtol=0, atol=1e-3)
        assert amp.state_dict()["loss_scaler0"]["unskipped"] == delays.count(False)


def test_steps_on_scaled_gradients_are_refused_and_zero_grad_forgets_them():
    model, optimizer = initialized("O1", options={"num_losses": 2})

    def run(loss_id=0, delay=True):
        backward(F.cross_entropy(model(X), Y), optimizer, loss_id, delay_unscale=delay)

    run()
    with pytest.raises(RuntimeError, match="still multiplied by 65536.*delay_unscale"):
        optimizer.step()
    amp._amp_state.loss_scalers[1].load_state_dict({"loss_scale": 8.0, "unskipped": 0})
    with pytest.raises(RuntimeError, match="scaled by 65536 are waiting.*scaled by 8"):
        run(loss_id=1)
    optimizer.zero_grad()
    run(loss_id=1, delay=False)
    optimizer.step()


def test_a_backward_that_fails_leaves_the_gradients_as_they_were():
    for level in ("O1", "O2"):
        model, optimizer = initialized(level)
        backward(F.cross_entropy(model(X), Y), optimizer)
        before = [p.grad.clone() for p in amp.master_params(optimizer)]
        with pytest.raises(KeyError, match="planted"):
            with amp.scale_loss(F.cross_entropy(model(X), Y), optimizer) as scaled:
                scaled.backward()
                raise KeyError("planted")
        assert same(before, [p.grad for p in amp.master_params(optimizer)])
        optimizer.step()


def test_one_context_inside_another_is_refused():
    model, optimizer = initialized("O1")
    with pytest.raises(RuntimeError, match="open for this optimizer already"):
        with amp.scale_loss(F.cross_entropy(model(X), Y), optimizer):
            with amp.scale_loss(F.cross_entropy(model(X), Y), optimizer):
                pass
    train(model, optimizer, 1)


# -- checkpoints ----------------------------------------------------------------------------


def saved(model, optimizer):
    file = io.BytesIO()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "amp": amp.state_dict()}
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def restored(level, state, kind="cpu", **settings):
    model, optimizer = initialized(level, kind, seed=1, **settings)  # other weights than those to be loaded
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    amp.load_state_dict(state["amp"])
    return model, optimizer


@on_devices
def test_a_resumed_training_is_bitwise_the_one_that_was_not_stopped(kind):
    adam = {"make": torch.optim.Adam, "lr": 0.01, "eps": 1e-4}  # its usual eps is 0 in float16
    for level, settings in itertools.product(LEVELS, ({}, adam)):
        model, optimizer = initialized(level, kind, **settings)
        train(model, optimizer, 3, planted=1 if level in ("O1", "O2") else None)
        state = saved(model, optimizer)
        assert {v.dtype for v in state["model"].values()} == {torch.float32, torch.int64}
        train(model, optimizer, 3, start=3)
        end = weights(model), weights(optimizer), amp.state_dict()

        model, optimizer = restored(level, state, kind, **settings)
        train(model, optimizer, 3, start=3)
        assert same(end[0], weights(model)) and same(end[1], weights(optimizer)) and end[2] == amp.state_dict()


def test_a_checkpoint_that_is_loaded_before_initialize_goes_on_bitwise():
    model, optimizer = initialized("O2")
    train(model, optimizer, 3)
    state = saved(model, optimizer)
    train(model, optimizer, 3, start=3)
    other, its_optimizer = made("cpu", seed=1)
    other.load_state_dict(state["model"])
    its_optimizer.load_state_dict(state["optimizer"])
    other, its_optimizer = amp.initialize(other, its_optimizer, opt_level="O2", verbosity=0)
    amp.load_state_dict(state["amp"])
    assert same(weights(its_optimizer), [state["model"][name] for name, _ in other.named_parameters()])
    train(other, its_optimizer, 3, start=3)
    assert same(weights(model), weights(other)) and same(weights(optimizer), weights(its_optimizer))


@pytest.mark.parametrize("source, target", [("O1", "O2"), ("O2", "O1"), ("O0", "O2"), ("O2", "O3"), ("O3", "O1")])
def test_a_checkpoint_goes_on_at_another_level(source, target):
    model, optimizer = initialized(source)
    train(model, optimizer, 3, planted=1 if source in ("O1", "O2") else None)
    state = saved(model, optimizer)
    other, its_optimizer = restored(target, state)
    if target != "O3":
        assert same(weights(its_optimizer), [state["model"][name] for name, _ in model.named_parameters()])
        assert all(s["momentum_buffer"].dtype == torch.float32 for s in its_optimizer.state.values())
    if source in ("O1", "O2") and target in ("O1", "O2"):
        assert amp.state_dict() == state["amp"] == {"loss_scaler0": {"loss_scale": 2.0**15, "unskipped": 1}}
    assert torch.allclose(model.eval()(X), other.eval()(X), atol=5e-3)
    other.train()
    train(other, its_optimizer, 2, start=3)
    assert all(w.isfinite().all() for w in weights(its_optimizer))


def test_checkpoints_that_do_not_fit():
    states = {f"loss_scaler{i}": {"loss_scale": 4.0 * i, "unskipped": i} for i in (1, 2, 3)}
    states = {"loss_scaler0": {"loss_scale": 2.0, "unskipped": 9}, **states}
    with pytest.raises(RuntimeError, match="before amp.initialize"):
        amp.load_state_dict(states)
    initialized("O1", options={"num_losses": 2})
    with pytest.warns(UserWarning, match=r"has 4 loss scale\(s\), amp.initialize made 2"):
        amp.load_state_dict(states)
    assert amp.state_dict() == {key: states[key] for key in ("loss_scaler0", "loss_scaler1")}
    with pytest.raises(RuntimeError, match="'state_dict'.*beside the loss scales"):
        amp.load_state_dict({"loss_scaler0": states["loss_scaler0"], "state_dict": {}})


def test_a_fixed_scale_stays_what_it_was_set_to(capsys):
    model, optimizer = made()
    amp.initialize(model, optimizer, opt_level="O2", loss_scale=64)
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 2.0**16, "unskipped": 3}})
    assert amp.state_dict() == {"loss_scaler0": {"loss_scale": 64.0, "unskipped": 3}}
    assert "loss scale 65536 of the checkpoint" in capsys.readouterr().out


def test_what_is_written_into_the_weights_reaches_the_masters():
    model, optimizer = initialized("O2", loss_scale=256)
    nn.init.constant_(model.last.bias, 0.25)  # after initialize, before the first step
    train(model, optimizer, 1, planted=0)
    assert (weights(optimizer)[-1] == 0.25).all()
    train(model, optimizer, 1)
    assert model.last.bias.mean().item() == pytest.approx(0.25, abs=0.1)
    kept = weights(optimizer)[0]
    model.first.weight.data[0].clamp_(0, 0)  # as in a Wasserstein GAN; this write leaves no trace on the tensor
    assert model.state_dict()["first.weight"][0].abs().max() == 0
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    train(model, optimizer, 1)
    assert model.first.weight[0].abs().max() == 0
    assert torch.equal(weights(optimizer)[0][1:], kept[1:]), "the other elements keep what rounding would lose"
    with torch.no_grad():
        next(amp.master_params(optimizer)).fill_(0.125)
    train(model, optimizer, 1)
    assert (model.first.weight == 0.125).all(), "a write into a master counts as well"


def test_groups_added_later_get_masters():
    model, optimizer = initialized("O2", make=lambda p, **k: torch.optim.SGD(list(p)[:2], **k))
    optimizer.add_param_group({"params": model.last.parameters(), "lr": 0.5})
    assert {p.dtype for p in amp.master_params(optimizer)} == {torch.float32}
    before = model.last.weight.clone()
    train(model, optimizer, 1)
    assert not torch.equal(before, model.last.weight)
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": [model.last.bias]})
    assert len(optimizer.param_groups) == 2


def test_momentum_from_before_is_kept():
    for level in ("O2", "O3"):
        model, optimizer = made()
        F.cross_entropy(model(X), Y).backward()
        optimizer.step()
        before = [optimizer.state[p]["momentum_buffer"].clone() for p in model.parameters()]
        model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
        assert model.first.weight.grad is None, "a float32 gradient on a half weight"
        after = [optimizer.state[p]["momentum_buffer"] for p in amp.master_params(optimizer)]
        assert same([b.to(a.dtype) for a, b in zip(after, before, strict=True)], after)
        assert {a.dtype for a in after} == {torch.float16 if level == "O3" else torch.float32}
        train(model, optimizer, 1)


# -- functions ------------------------------------------------------------------------------


class Ends(nn.Module):
    """A net that ends in a function looked up when it is called."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(6, 1), function

    def forward(self, x):
        return self.function(self.layer(x))


def ends(level, function=lambda x: torch.sigmoid(x), kind="cpu"):
    return initialized(level, kind, net=lambda: Ends(function))


@on_devices
def test_binary_cross_entropy_gives_advice_under_o1(kind):
    x, y = torch.randn(4, 6).to(kind), torch.ones(4, 1).to(kind)
    model, _ = ends("O1", kind=kind)
    for loss in (F.binary_cross_entropy, nn.BCELoss()):
        with pytest.raises(RuntimeError, match=r"BCEWithLogitsLoss.*register_float_function\(torch, 'sigmoid'\)"):
            loss(model(x), y)
    inside, _ = ends("O1", lambda z: F.binary_cross_entropy(torch.sigmoid(z), y), kind)
    with pytest.raises(RuntimeError, match="BCEWithLogitsLoss"):
        inside(x)
    for model in (ends("O2", kind=kind)[0], made(kind, net=lambda: Ends(torch.sigmoid))[0]):
        assert F.binary_cross_entropy(model(x), y).isfinite(), "float32 comes out"


@on_devices
def test_the_advice_on_binary_cross_entropy_works(kind):
    x, y = torch.randn(4, 6).to(kind), torch.ones(4, 1).to(kind)
    amp.register_float_function(torch, "sigmoid")
    model, optimizer = ends("O1", kind=kind)
    backward(F.binary_cross_entropy(model(x), y), optimizer)
    inside, _ = ends("O1", lambda z: F.binary_cross_entropy(torch.sigmoid(z), y), kind)
    assert inside(x).isfinite()
    amp.register_float_function(F, "binary_cross_entropy")  # whoever knows better
    assert F.binary_cross_entropy(ends("O1", kind=kind)[0](x).half(), y).dtype == torch.float32
    logits, optimizer = ends("O1", lambda z: z, kind)
    backward(F.binary_cross_entropy_with_logits(logits(x), y), optimizer)
    assert logits.layer.weight.grad.abs().max() > 0


def test_casts_of_the_readers_own_functions():
    half, single, whole = torch.float16, torch.float32, torch.int64
    for decorate, given, expected in (
        (amp.half_function, (single, half), (half, half, half)),
        (amp.float_function, (half, single, whole), (single, single, whole, single)),
        (amp.promote_function, (half, single), (single, single, half)),
        (amp.promote_function, (half, half), (half, half, half)),
    ):
        seen, values = [], [torch.ones(2, 2, dtype=dtype) for dtype in given]

        @decorate
        def product(*tensors, seen=seen):
            seen.append((*(t.dtype for t in tensors), (tensors[0] @ tensors[0].T).dtype))
            return tensors[0]

        ends("O1", lambda hidden, product=product, values=values: product(*values))[0](torch.randn(4, 6))
        product(*values)
        with amp.disable_casts():
            product(*values)
        amp._reset()
        product(*values)
        assert seen[0] == expected and seen[1][:-1] == expected[:-1], "outside a model it is cast as well"
        assert seen[2] == seen[3] == (*given, given[0])


def test_registered_functions_are_cast_until_they_are_put_back():
    mine = types.SimpleNamespace(act=lambda x: x + 1)
    original, seen = mine.act, []

    def ending(x):
        out = mine.act(x)
        seen.append(out.dtype)
        return out

    half, single = torch.float16, torch.float32
    x = torch.randn(4, 6)
    for register in (amp.register_float_function, amp.register_half_function, amp.register_promote_function):
        register(mine, "act")
        ends("O1", ending)[0](x)
        ends("O2", ending)[0](x)
    with amp.disable_casts():
        ends("O1", ending)[0](x)
    assert seen == [single, half, half, half, half, half, single]
    amp._reset()
    assert mine.act is original
    with pytest.raises(ValueError, match="no function 'sigmod'"):
        amp.register_half_function(torch, "sigmod")


def test_disable_casts_holds_inside_a_forward_and_around_it():
    def exact(hidden):
        with amp.disable_casts():
            return F.linear(hidden.float(), torch.ones(2, 1))

    seen = []
    model, _ = ends("O1", lambda hidden: seen.append((hidden.dtype, exact(hidden).dtype)) or hidden)
    model(torch.randn(4, 6))
    with amp.disable_casts():
        model(torch.randn(4, 6))
    model(torch.randn(4, 6))
    half, single = torch.float16, torch.float32
    assert seen == [(half, single), (single, single), (half, single)]


# -- objects that live on -------------------------------------------------------------------


def test_a_second_initialize_leaves_the_first_models_at_their_level(capsys):
    first = initialized("O1", loss_scale=256)
    twin = initialized("O1", loss_scale=256)
    second = initialized("O2", options={"num_losses": 2})
    for model, optimizer in (first, second, twin, first, second, twin):
        train(model, optimizer, 2)
    assert first[0].seen[1] == torch.float16 and first[0].first.weight.dtype == torch.float32
    assert same(weights(first[0]), weights(twin[0])), "one training changed the other"
    assert len(amp.state_dict()) == 2
    with pytest.raises(RuntimeError, match="two calls of amp.initialize"):
        with amp.scale_loss(torch.ones(()), [first[1], second[1]]):
            pass
    assert capsys.readouterr().out == ""


def test_copies_of_a_model_compute_with_their_own_weights():
    for level in LEVELS:
        model, optimizer = initialized(level)
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        exact = model.eval()(X)
        for other in copies:
            assert type(other).__name__ == "Net" and isinstance(other, Net)
            assert torch.equal(other.eval()(X), exact) and other.seen == model.seen
            nn.init.zeros_(other.last.weight), nn.init.zeros_(other.last.bias)
            assert other(X).abs().max() == 0, "the copy computed with the original's weights"
            assert other.state_dict()["last.weight"].abs().max() == 0
            assert {v.dtype for v in other.state_dict().values()} == {torch.float32, torch.int64}
        assert torch.equal(model(X), exact)


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_model_compiles_after_initialize(level):
    model, optimizer = initialized(level)
    twin, its_optimizer = initialized(level)
    compiled = torch.compile(model, backend="eager")
    train(compiled, optimizer, 2)
    train(twin, its_optimizer, 2)
    assert same(weights(model), weights(twin))
    torch._dynamo.reset()


def test_an_instance_with_a_forward_of_its_own_keeps_it():
    net = nn.Linear(6, 3)
    net.forward = lambda x: F.linear(x, net.weight) * 0 + 7
    model = amp.initialize(net, opt_level="O2", verbosity=0)
    assert (model(torch.randn(2, 6)) == 7).all() and model.forward.__self__ is model


# -- what it says and what it refuses -------------------------------------------------------


@pytest.mark.parametrize("value", [-1, -1.0, "-1", "-1.0", "dynamic", 128, 128.0, "128", "128.0", "1.28e2"])
def test_minus_one_means_dynamic_and_a_scale_may_be_a_text(value):
    initialized("O2", loss_scale=value)
    [scaler] = amp._amp_state.loss_scalers
    dynamic = value == "dynamic" or float(value) == -1
    assert scaler.dynamic == dynamic and scaler.loss_scale() == (2**16 if dynamic else 128)


@pytest.mark.parametrize(
    "options, message",
    [
        *(({"loss_scale": v}, 'number.*"dynamic"') for v in (0, -2, "fast", "", "nan", float("inf"), True, [])),
        ({"opt_level": "O4"}, "'O0', 'O1', 'O2', 'O3'"),
        ({"opt_level": "01"}, "letter O, not with a zero"),
        ({"opt_level": None}, "not a level"),
        ({"opt_level": "O2", "keep_batchnorm_fp32": "yes"}, "True, False or None"),
        ({"opt_level": "O2", "cast_model_type": torch.int8}, "cast_model_type"),
        ({"opt_level": "O2", "patch_torch_functions": True}, "choose 'O1'"),
        ({"opt_level": "O1", "master_weights": True}, "contradicts O1"),
        ({"opt_level": "O1", "keep_batchnorm_fp32": False}, "contradicts O1"),
        ({"opt_level": "O1", "cast_model_type": torch.float16}, "contradicts O1"),
        ({"num_losses": 0}, "1 or more"),
        ({"min_loss_scale": 8.0, "max_loss_scale": 4.0}, "leave no loss scale"),
    ],
)
def test_bad_settings_are_refused_at_once(options, message):
    model, optimizer = made()
    with pytest.raises(ValueError, match=message):
        amp.initialize(model, optimizer, **options)
    amp.initialize(model, optimizer, verbosity=0)  # nothing had happened to them


def wrapped_in_ddp():
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    return nn.parallel.DistributedDataParallel(Net())


REFUSED = [
    (wrapped_in_ddp, "O1", RuntimeError, "wrapped in DistributedDataParallel.*initialize first"),
    (lambda: nn.Sequential(nn.DataParallel(Net())), "O2", RuntimeError, "wrapped in DataParallel"),
    (lambda: torch.compile(Net(), backend="eager"), "O1", RuntimeError, "compiled already"),
    (lambda: torch.jit.script(nn.Linear(2, 2)), "O1", RuntimeError, "compiled already"),
    (lambda: Net().half(), "O1", ValueError, "'first.weight' is torch.float16.*without .half()"),
    (lambda: Net().double(), "O0", ValueError, "'first.weight' is torch.float64"),
    (lambda: nn.Sequential(nn.Embedding(4, 2, sparse=True)), "O2", ValueError, "'0' makes sparse.*'O1'"),
    (lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta")), "O1", ValueError, "cpu and meta"),
    (lambda: "resnet50", "O1", TypeError, "models must be .*Module or a list"),
]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning")
@pytest.mark.parametrize("model, level, error, message", REFUSED)
def test_models_that_cannot_be_initialized_are_refused(model, level, error, message):
    try:
        with pytest.raises(error, match=message):
            amp.initialize(model(), opt_level=level)
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def test_what_was_initialized_is_refused_the_second_time():
    model, optimizer = initialized("O1")
    fresh_model, fresh_optimizer = made()
    with pytest.raises(RuntimeError, match="model went through amp.initialize before.*again"):
        amp.initialize(nn.Sequential(model), fresh_optimizer)
    with pytest.raises(RuntimeError, match="optimizer went through amp.initialize before.*new one"):
        amp.initialize(fresh_model, optimizer)
    with pytest.raises(ValueError, match="twice"):
        amp.initialize(fresh_model, [fresh_optimizer, fresh_optimizer])
    with pytest.raises(TypeError, match="optimizers must be"):
        amp.initialize(fresh_model, fresh_model.parameters())
    amp.initialize(fresh_model, fresh_optimizer, verbosity=0)
    train(model, optimizer, 1)


def test_scale_loss_says_what_is_missing():
    loss, (foreign_model, foreign) = torch.ones((), requires_grad=True), made()
    with pytest.raises(RuntimeError, match="before amp.initialize; call"):
        backward(loss, foreign)
    _, optimizer = initialized("O1")
    with pytest.raises(RuntimeError, match="has not seen; pass it to amp.initialize"):
        backward(loss, foreign)
    with pytest.raises(RuntimeError, match="has not seen"):
        backward(loss, [optimizer, foreign])
    for none in (None, []):
        with pytest.raises(ValueError, match="needs the optimizer"):
            backward(loss, none)
    with pytest.raises(ValueError, match="num_losses=1"):
        backward(loss, optimizer, loss_id=1)
    with pytest.raises(TypeError, match="tensor"):
        backward(1.5, optimizer)
    with pytest.raises(TypeError, match="optimizers must be"):
        backward(loss, foreign_model)


def test_steps_that_would_go_wrong_silently_are_refused():
    model, optimizer = initialized("O2")
    with pytest.raises(RuntimeError, match="closure.*without the loss scale"):
        optimizer.step(lambda: torch.ones(()))
    F.cross_entropy(model(X), Y).backward()
    with pytest.raises(RuntimeError, match="outside amp.scale_loss"):
        optimizer.step()
    optimizer.zero_grad()
    optimizer.step()  # nothing to do


@on_devices
def test_a_model_moved_after_initialize_is_refused(kind):
    if kind == "cpu":
        return  # there is nowhere to move to
    model, optimizer = initialized("O2", "cpu")
    model.to(kind)
    x, y = next(batches(1, kind))
    with pytest.raises(RuntimeError, match="moved to another device after amp.initialize"):
        backward(F.cross_entropy(model(x), y), optimizer)


def test_not_enabled_means_nothing_happens():
    model, optimizer = made()
    assert amp.initialize(model, optimizer, enabled=False, opt_level=None) == (model, optimizer)
    assert type(model) is Net and amp.initialize(model, enabled=False) is model
    twin, plain = made()
    train(model, optimizer, 2)
    for x, y in batches(2):
        plain.zero_grad()
        F.cross_entropy(twin(x), y).backward()
        plain.step()
    assert same(weights(model), weights(twin)) and amp.state_dict() == {}
    amp.load_state_dict({})
    initialized("O1")
    amp.initialize(model, optimizer, enabled=False)
    cast = amp.half_function(lambda x: x.dtype)
    assert cast(torch.ones(1)) == torch.float32, "the earlier call's casts go on"


def test_one_line_at_the_start_and_one_for_a_skip(capsys):
    model, optimizer = amp.initialize(*made(), opt_level="O2", loss_scale=-1)
    assert capsys.readouterr().out.strip() == (
        "amp: O2 · weights in float16, batch norm in float32, float32 master weights in the optimizer; "
        "loss scale dynamic"
    )
    train(model, optimizer, 2, planted=1)
    assert capsys.readouterr().out.strip() == (
        "amp: gradients overflowed, so the next optimizer.step() is skipped; the loss scale goes from 65536 to 32768"
    )
    backward(model(torch.full((2, 6), torch.nan)).sum(), optimizer)
    assert "the loss is inf or NaN itself" in capsys.readouterr().out
    amp.initialize(*made())
    assert "there was an earlier amp.initialize" in capsys.readouterr().out


def test_models_alone_and_lists_come_back_as_they_were_given():
    net, nets = nn.Linear(2, 2), [nn.Linear(2, 2), nn.Linear(2, 2)]
    assert amp.initialize(net, opt_level="O3", verbosity=0) is net
    assert amp.initialize(nets, opt_level="O2", verbosity=0) is nets
    model, optimizer = made()
    back = amp.initialize(model, [optimizer], verbosity=0)
    assert back == (model, [optimizer]) and isinstance(back[1], list)


# -- ranks ----------------------------------------------------------------------------------


def on_ranks(level, verbosity=0, no_sync=False):
    """A training on this rank: from weights of its own, with an overflow on rank 1 at step 2."""
    with helpers.distributed("cpu") as world, contextlib.redirect_stdout(io.StringIO()) as printed:
        torch.manual_seed(world.rank)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=verbosity)
        ddp = nn.parallel.DistributedDataParallel(model)
        seen = []
        for step in range(5):
            parts = [(x.chunk(2)[world.rank], y.chunk(2)[world.rank]) for x, y in batches(2, start=2 * step)]
            before = weights(optimizer)
            for number, (x, y) in enumerate(parts):
                local = no_sync and number == 0
                with ddp.no_sync() if local else contextlib.nullcontext():
                    loss = F.cross_entropy(ddp(x), y) / 2
                    backward(loss * (1e38 if (step, world.rank) == (2, 1) else 1), optimizer)
            optimizer.step()
            optimizer.zero_grad()
            seen.append((not same(before, weights(optimizer)), amp.state_dict()["loss_scaler0"]["loss_scale"]))
        return seen, weights(optimizer), weights(model), printed.getvalue()


def test_ranks_agree_on_steps_scales_and_weights():
    for level in ("O1", "O2"):
        ends = {}
        for no_sync in (False, True):
            first, second = launch(on_ranks, 2, level, 1, no_sync, timeout=900)
            assert first[0] == second[0], (level, no_sync)
            halved = 1 if no_sync else 2  # each synchronised pass is looked at on its own
            assert [moved for moved, _ in first[0]] == [True, True, False, True, True]
            assert [scale for _, scale in first[0]] == [2.0**16] * 2 + [2.0 ** (16 - halved)] * 3
            assert same(first[1], second[1]) and same(first[2], second[2]), "the ranks went apart"
            assert first[3].count("amp: ") == 1 + halved and second[3] == "", "only rank 0 prints"
            ends[no_sync] = first[1]
        near = zip(ends[False], ends[True], strict=True)
        assert all(torch.allclose(a, b, rtol=0, atol=2e-3) for a, b in near), "no_sync lost gradients"

"""Mixed precision: each level computes what its name says, and the scaler does its work on all ranks alike."""

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from toys import ToySet, batch, smooth_net

import helpers
from helpers import RunConfig, device, launch
from helpers.comparison import ladder
from helpers.config import PRECISIONS, precision_refusal
from helpers.training import checkpoint, precision, strategies
from helpers.training.loop import train
from helpers.training.precision import MixedPrecision

HALF = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@pytest.fixture(autouse=True)
def own_results(tmp_path, monkeypatch):
    monkeypatch.setenv("HELPERS_RESULTS", str(tmp_path / "results"))


def float32_data():
    return ToySet(dtype=torch.float32), ToySet(37, torch.float32)


def plain_net():
    return smooth_net(dtype=torch.float32)


def net_with_norm():
    return smooth_net(nn.BatchNorm2d, torch.float32)


def made(level, make=net_with_norm, **options):
    torch.manual_seed(0)
    net = make()
    return net, MixedPrecision(level, net, "cpu", **options)


@cache  # several tests compare with the same run
def losses(**settings):
    settings = {"model": plain_net, "data": float32_data, "global_batch": 32, "steps": 12, "threads": 1, **settings}
    config = RunConfig(**settings)
    return launch(train, config.processes, config, timeout=600)[0]


# -- what a level is ----------------------------------------------------------------------


@pytest.mark.parametrize("name", PRECISIONS)
def test_formats_of_weights_norms_masters_and_convolutions(name):
    level = PRECISIONS[name]
    net, mixed = made(name)
    half = HALF.get(level.dtype, torch.float32)
    own = half if level.half_weights else torch.float32
    assert {net[0].weight.dtype, net[7].bias.dtype} == {own}
    norm = torch.float32 if level.masters or not level.half_weights else half
    assert {net[1].weight.dtype, net[1].running_var.dtype} == {norm}
    assert net[1].num_batches_tracked.dtype == torch.int64
    updated = torch.float32 if level.masters else own
    assert {p.dtype for p in mixed.parameters} == {updated}
    assert mixed.scaler.is_enabled() == (name in ("fp16-mixed", "fp16-masters"))
    computed = []
    net[0].register_forward_hook(lambda module, inputs, output: computed.append(output.dtype))
    outputs = mixed.forward(net, torch.randn(4, 3, 8, 8))
    assert computed == [half] and outputs.dtype == torch.float32, "a loss wants fp32"


def test_masters_move_where_half_weights_cannot():
    """1 − 1e-4 is 1 in bfloat16: without masters the weight never moves."""

    def one():
        net = nn.Linear(1, 1, bias=False)
        nn.init.ones_(net.weight)
        return net

    moved = {}
    for name in ("bf16-masters", "bf16-true"):
        net, mixed = made(name, one)
        optimizer = torch.optim.SGD(mixed.parameters, lr=1e-4)
        for _ in range(100):
            mixed.zero_grad()
            mixed.backward(mixed.forward(net, torch.ones(1)).sum())
            mixed.step(optimizer)
        moved[name] = net.weight.item()
    assert moved["bf16-true"] == 1
    assert moved["bf16-masters"] == pytest.approx(0.99, abs=0.004)


def test_clipping_sees_gradients_without_the_scale():
    norms = []
    for scale in (1.0, 2.0**12):
        net, mixed = made("fp16-mixed", plain_net, init_scale=scale)
        images, labels = batch(torch.float32)
        mixed.backward(100 * F.cross_entropy(mixed.forward(net, images), labels))
        assert mixed.step(torch.optim.SGD(mixed.parameters, lr=0.1), clip_norm=0.5)
        norms.append(torch.stack([p.grad.norm() for p in mixed.parameters]).norm().item())
    assert norms == pytest.approx([0.5, 0.5], rel=1e-3)


# -- the scaler on ranks ------------------------------------------------------------------


def overflowing(level, at, steps, wrapped="ddp"):
    """A training on this rank in which rank 1's loss is infinite at step `at`; what happened at each step."""
    with helpers.distributed("cpu") as world:
        net, mixed = made(level, plain_net, growth_interval=3)
        config = RunConfig(strategy=wrapped, nproc_per_node=world.size)
        model = strategies.make(config, world.device).wrap(net)
        optimizer = torch.optim.SGD(mixed.parameters, lr=0.05)
        images, labels = (part.chunk(world.size)[world.rank] for part in batch(torch.float32))
        seen = []
        for step in range(steps):
            before = [p.detach().clone() for p in mixed.parameters]
            mixed.zero_grad()
            loss = F.cross_entropy(mixed.forward(model, images), labels)
            mixed.backward(loss * (1e39 if step == at and world.rank == 1 else 1))
            done = mixed.step(optimizer)
            moved = any(not torch.equal(a, b) for a, b in zip(before, mixed.parameters, strict=True))
            seen.append((done, moved, mixed.scaler.get_scale()))
        return seen, mixed.skipped, [p.detach() for p in net.parameters()]


@pytest.mark.parametrize("level", ["fp16-mixed", pytest.param("fp16-masters", marks=pytest.mark.long)])
def test_an_overflow_on_one_rank_skips_exactly_one_step_on_every_rank(level):
    (first, skipped_0, weights_0), (second, skipped_1, weights_1) = launch(overflowing, 2, level, 4, 8, timeout=600)
    assert first == second and skipped_0 == skipped_1 == 1
    assert [done for done, _, _ in first] == [moved for _, moved, _ in first] == [k != 4 for k in range(8)]
    assert [scale / 2**16 for _, _, scale in first] == [1, 1, 2, 2, 1, 1, 1, 2]
    assert all(torch.equal(a, b) and a.isfinite().all() for a, b in zip(weights_0, weights_1, strict=True))


def test_a_run_records_scales_and_skipped_steps():
    calls = []

    def loss(outputs, labels):
        calls.append(len(calls))
        return F.cross_entropy(outputs, labels) * (1e38 if len(calls) == 6 else 1)

    measured = losses(precision="fp16-mixed", loss=loss, strategy="ddp", nproc_per_node=2, evaluate=False)
    scales = measured["samples"]["loss_scale"]
    assert measured["skipped_steps"] == 1 and measured["loss_scale"] == scales[-1] == 2**15
    assert scales == [2.0**16] * 5 + [2.0**15] * 7
    assert losses(precision="bf16-mixed")["samples"]["loss_scale"] == []


# -- in a run -----------------------------------------------------------------------------


def some_long(short, *long):
    return pytest.mark.parametrize("name", [short, *(pytest.param(of, marks=pytest.mark.long) for of in long)])


@some_long("fp16-mixed", "fp16-masters", "bf16-mixed", "bf16-masters", "bf16-true")
def test_every_level_learns_like_fp32(name):
    exact, half = (losses(precision=p, strategy="ddp", nproc_per_node=2)["samples"]["loss"] for p in ("fp32", name))
    assert half[-1] < half[0]
    assert half != exact, "nothing was computed in half"
    assert half == pytest.approx(exact, abs=0.03)


@some_long("bf16-mixed", "bf16-masters", "bf16-true")
def test_data_parallel_threads_compute_in_the_format_too(name):
    one = losses(precision=name)["samples"]["loss"]
    many = losses(precision=name, strategy="data_parallel", nproc_per_node=2)["samples"]["loss"]
    fp32 = losses()["samples"]["loss"]
    assert many == pytest.approx(one, abs=2e-3)

    def rounded(run):
        return max(abs(a - b) for a, b in zip(run, fp32, strict=True))

    assert rounded(many) > rounded(one) / 4, "the threads computed in fp32"
    plain = losses(strategy="data_parallel", nproc_per_node=2)["samples"]["loss"]
    assert rounded(plain) < rounded(one) / 20


def test_synchronised_norm_takes_half_batches():
    settings = dict(model=net_with_norm, precision="bf16-mixed", global_batch=8)
    whole = losses(**settings)
    settings.update(strategy="ddp", nproc_per_node=2)
    local, synced = (losses(**settings, sync_batch_norm=synced) for synced in (False, True))

    def far(run):
        pairs = zip(run["samples"]["loss"], whole["samples"]["loss"], strict=True)
        return max(abs(a - b) for a, b in pairs)

    assert far(synced) < far(local) / 3


@some_long("fp16-masters", "fp16-mixed", "bf16-masters")
def test_resume_with_amp_follows_the_run_that_was_never_stopped(tmp_path, name):
    calls = []

    def overflows_once(outputs, labels):
        calls.append(len(calls))
        return F.cross_entropy(outputs, labels) * (1e38 if len(calls) == 3 and name != "bf16-masters" else 1)

    settings = dict(precision=name, strategy="ddp", nproc_per_node=2, model=net_with_norm, checkpoint_every=5)
    settings["evaluate_every"] = 1
    whole = losses(checkpoint_dir=str(tmp_path / "whole"), loss=overflows_once, **settings)
    first = losses(checkpoint_dir=str(tmp_path / "cut"), loss=overflows_once, **{**settings, "steps": 5})
    calls += [0] * 99  # the overflow belongs to the first part
    rest = losses(checkpoint_dir=str(tmp_path / "cut"), loss=overflows_once, resume=True, **settings)
    for what in ("loss", "loss_scale"):
        assert first["samples"][what] + rest["samples"][what] == whole["samples"][what], what
    if name != "bf16-masters":
        assert whole["skipped_steps"] == rest["skipped_steps"] == 1 and rest["loss_scale"] == 2.0**15
    states = [checkpoint.latest(tmp_path / folder)["model"] for folder in ("whole", "cut")]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert states[0]["0.weight"].dtype == torch.float32, "masters are what is worth keeping"
    assert [p["step"] for p in rest["curve"]] == [6, 12] == [p["step"] for p in whole["curve"]]


# -- what the device can do ---------------------------------------------------------------


def test_a_level_the_device_cannot_compute_is_refused_before_anything_starts(monkeypatch):
    monkeypatch.setattr(device, "dtypes", lambda kind=None: {"float32": 1.0, "bfloat16": 1.5})
    with pytest.raises(ValueError, match="computes in float16.* they can: fp32, bf16-mixed, bf16-masters, bf16-true"):
        helpers.run(RunConfig(precision="fp16-masters", model=plain_net, data=float32_data, steps=3))
    assert helpers.records.read.read().records == []
    RunConfig(precision="bf16").check_machine()


def test_a_format_that_cannot_be_computed_is_absent(monkeypatch):
    real = torch.nn.functional.conv2d

    def conv2d(images, *args, **kwargs):
        if images.dtype == torch.float16:
            raise RuntimeError("planted: not implemented for 'Half'")
        return real(images, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "conv2d", conv2d)
    device._dtypes.cache_clear()
    threads = torch.get_num_threads()
    try:
        assert set(device.dtypes("cpu")) == {"float32", "bfloat16"} and device.dtypes("cpu")["float32"] == 1
        assert torch.get_num_threads() == threads
        assert "float16" in precision_refusal("fp16-mixed", "cpu") and precision_refusal("bf16", "cpu") == ""
    finally:
        device._dtypes.cache_clear()


def test_a_level_that_will_be_slower_is_said_once_before_the_runs(monkeypatch, capsys):
    monkeypatch.setenv("HELPERS_PROGRESS", "plain")
    monkeypatch.setattr(device, "dtypes", lambda kind=None: {"float32": 1.0, "bfloat16": 1.5, "float16": 0.1})
    slow = RunConfig(precision="fp16-mixed", model=plain_net, data=float32_data, steps=8, global_batch=32)
    made = ladder.compare([slow.but(precision="fp32"), slow], rounds=2)
    said = capsys.readouterr().out
    found = {"precision": "fp16-mixed", "dtype": "float16", "conv_ratio": 0.1, "faster": "bfloat16"}
    assert [r["advice"] for r in made.records] == [None, found]
    assert said.count(precision.advice_text(found)) == 1
    assert said.index(precision.advice_text(found)) < said.index("baseline · fp16-mixed: done")
    assert precision.advice("bf16", "cpu") is None and precision.advice_text(None) == ""
    monkeypatch.setattr(device, "dtypes", lambda kind=None: pytest.fail("half a second for nothing"))
    assert precision.advice("fp32", "cpu") is None and precision_refusal("O0", "cpu") == ""

"""Training on a GPU: the same losses as on the CPU, at every level, layout and strategy that one device can show."""

from functools import cache

import gpu
import pytest
import torch
from gpu import EXACT, KIND
from toys import float64_gpt, float64_net, smooth_net, toy_data, toy_text

from helpers import RunConfig, device, launch
from helpers.config import PRECISIONS
from helpers.data import loaders, sets
from helpers.training.loop import train

pytestmark = gpu.MARKS
IMAGES = dict(model=float64_net, data=toy_data, lr=0.05, global_batch=32)
TOKENS = dict(model=float64_gpt, data=toy_text, optimizer="adamw", lr=0.01, global_batch=16)


def float32_net():
    return smooth_net(dtype=torch.float32)


def float32_data():
    return tuple(type(part)(len(part), torch.float32) for part in toy_data())


def norm_net():
    return smooth_net(torch.nn.BatchNorm2d, torch.float32)


@cache  # several tests compare with the same run
def measured(kind=KIND, **settings):
    config = RunConfig(**{"steps": 20, "threads": 1, "device": kind, **settings})
    return launch(train, 1, config, timeout=300, env={**EXACT, "HELPERS_DEVICE": kind})[0]


def apart(one, other):
    losses = [torch.tensor(of["samples"]["loss"], dtype=torch.float64) for of in (one, other)]
    assert losses[0].isfinite().all() and losses[0][0] > losses[0][-1], "the toy problem is not being learnt"
    return (losses[0] - losses[1]).abs().max().item()


@pytest.mark.parametrize("net", [IMAGES, TOKENS], ids=["images", "tokens"])
@pytest.mark.parametrize("way", [{}, dict(accumulation=2, clip_norm=0.5)], ids=["plain", "accumulated, clipped"])
def test_the_device_follows_the_cpu(net, way):
    found, base = measured(**net, **way), measured("cpu", **net, **way)
    assert apart(found, base) <= 1e-9 and found["evaluation"]["correct"] == base["evaluation"]["correct"]
    assert found["peak_memory_bytes"][0] > 0 and found["memory_bytes"] == base["memory_bytes"]


FLOATS = dict(model=norm_net, data=float32_data, lr=0.05, global_batch=32)


@pytest.mark.parametrize("level", PRECISIONS)
def test_every_level_follows_fp32(level):
    if PRECISIONS[level].dtype not in device.dtypes(KIND):
        pytest.skip(f"{KIND} does not compute in {PRECISIONS[level].dtype} here")
    found = measured(**FLOATS, precision=level)
    assert apart(found, measured(**FLOATS)) <= (0.2 if level.endswith("-true") else 0.05)
    scaled = PRECISIONS[level].scaled
    assert bool(found["loss_scale"]) == scaled and found["skipped_steps"] <= 3


@pytest.mark.parametrize(
    "way, tolerance",
    [
        (dict(channels_last=True), 1e-4),
        (dict(input_path="workers", num_workers=1), 1e-4),
        (dict(compiler="inductor"), 1e-3),
        (dict(compiler="auto", steps=60), 1e-3),
        (dict(compiler="inductor", channels_last=True, precision="bf16-mixed"), 0.05),
    ],
    ids=lambda way: " ".join(map(str, way.values())) if isinstance(way, dict) else "",
)
def test_layouts_loaders_and_compilers_follow_eager(way, tolerance):
    base = {key: value for key, value in way.items() if key == "steps"}
    assert apart(measured(**FLOATS, **way), measured(**FLOATS, **base)) <= tolerance


@pytest.mark.parametrize(
    "way",
    [
        dict(strategy="ddp"),
        dict(strategy="data_parallel"),
        dict(strategy="zero1"),
        dict(strategy="fsdp"),
        dict(strategy="fsdp", shard="grad_op"),
        dict(strategy="fsdp", offload=True, clip_norm=0.5),
        dict(strategy="fsdp", activation_checkpointing="full"),
        dict(activation_checkpointing="selective"),
    ],
    ids=lambda way: " ".join(map(str, way.values())),
)
def test_strategies_of_one_rank_follow_the_baseline(way):
    base = {key: value for key, value in way.items() if key == "clip_norm"}
    assert apart(measured(**TOKENS, **way), measured(**TOKENS, **base)) <= 1e-9


@pytest.mark.parametrize("strategy", ["baseline", "fsdp"])
def test_a_run_goes_on_from_its_checkpoint(strategy, tmp_path):
    way = dict(TOKENS, strategy=strategy, checkpoint_dir=str(tmp_path))
    measured(**way, steps=10, checkpoint_every=5)
    rest = measured(**way, resume=True)
    whole = measured(**TOKENS)["samples"]["loss"][10:]
    assert rest["first_step"] == 10 and rest["samples"]["loss"] == pytest.approx(whole, abs=1e-9)


def dropout_net():
    return torch.nn.Sequential(torch.nn.Dropout(0.2), float64_net())


def test_dropout_on_the_device_goes_on_from_a_checkpoint(tmp_path):
    way = dict(IMAGES, model=dropout_net, checkpoint_dir=str(tmp_path))
    measured(**way, steps=10)
    whole = measured(**dict(way, checkpoint_dir=None))["samples"]["loss"]
    assert measured(**way, resume=True)["samples"]["loss"] == pytest.approx(whole[10:], abs=1e-9)


def test_batches_on_the_device_are_those_of_the_cpu():
    generator = torch.Generator().manual_seed(3)
    images = torch.randint(0, 256, (64, 3, 32, 32), generator=generator, dtype=torch.uint8)
    data = sets.ImageSet("planted", images, torch.arange(64) % 10, tuple("0123456789"), (0.5,) * 3, (0.2,) * 3, True)
    made = [list(loaders.make_loader(data, device=kind, global_batch=16)) for kind in (KIND, "cpu")]
    assert len(made[0]) == 4
    for (found, labels), (expected, right) in zip(*made, strict=True):
        assert found.device.type == labels.device.type == KIND
        assert torch.equal(labels.cpu(), right) and (found.cpu() - expected).abs().max() <= 1e-6

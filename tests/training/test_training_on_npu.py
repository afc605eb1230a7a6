"""Training on the emulated card, taken for a real one: what a GPU would refuse as well is an error here.

Its tensors do not mix with the CPU's, it has no float64, and its generator is its own: a forgotten copy, a
`set_device` that is missing, or a sum in a format that not every device has, fails here and not on the first real one.
"""

from functools import cache

import pytest
import torch
from npu_ranks import needs_npu
from toys import float64_gpt, smooth_net, toy_data, toy_text

from helpers import RunConfig, device, launch
from helpers.data import sets
from helpers.training.loop import train

pytestmark = needs_npu


def norm_net():
    return smooth_net(torch.nn.BatchNorm2d, torch.float32)


def dropout_net():
    return torch.nn.Sequential(torch.nn.Dropout(0.2), norm_net())


def float32_data():
    return tuple(type(part)(len(part), torch.float32) for part in toy_data())


def pictures():
    """Augmented and normalised on the device, as the kit's own data sets are."""
    images = torch.randint(0, 256, (64, 3, 8, 8), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
    made = sets.ImageSet("planted", images, torch.arange(64) % 3, tuple("abc"), (0.5,) * 3, (0.2,) * 3, True)
    return made, made


def float32_gpt():
    return float64_gpt().float()


IMAGES = dict(model=norm_net, data=float32_data, lr=0.05, global_batch=32)
PICTURES = dict(IMAGES, data=pictures, augment=True)
TOKENS = dict(model=float32_gpt, data=toy_text, optimizer="adamw", lr=0.01, global_batch=16)


def taken_for_real(config):
    import platforms.npu

    platforms.npu.load()
    device._is_emulated = lambda kind: False
    return train(config)


@cache  # several tests compare with the same run
def measured(kind="npu", ranks=1, **settings):
    config = RunConfig(**{"steps": 12, "threads": 1, "device": kind, "nproc_per_node": ranks, **settings})
    return launch(train if kind == "cpu" else taken_for_real, ranks, config, timeout=600)[0]


def apart(one, other):
    losses = [torch.tensor(of["samples"]["loss"], dtype=torch.float64) for of in (one, other)]
    assert losses[0].isfinite().all() and losses[0][0] > losses[0][-1], "the toy problem is not being learnt"
    return (losses[0] - losses[1]).abs().max().item()


def kept(found):
    """Bytes of weights, gradients and the optimizer; what a kernel keeps for its backward pass differs by device."""
    return [{name: size for name, size in rank.items() if name != "activations"} for rank in found["memory_bytes"]]


long = pytest.mark.long


@pytest.mark.parametrize(
    "way, tolerance",
    [
        (IMAGES, 1e-5),
        pytest.param(dict(PICTURES, lr=0.01), 1e-5, marks=long),
        pytest.param(dict(PICTURES, lr=0.01, input_path="workers", num_workers=1), 1e-5, marks=long),
        pytest.param(dict(TOKENS, accumulation=2, clip_norm=0.5), 1e-5, marks=long),
        pytest.param(dict(IMAGES, precision="bf16-mixed"), 0.02, marks=long),
        (dict(IMAGES, precision="fp16-mixed"), 0.02),
        pytest.param(dict(IMAGES, precision="fp16-true"), 0.02, marks=long),
        (dict(IMAGES, ranks=2, strategy="ddp", sync_batch_norm=True), 1e-5),
        pytest.param(dict(TOKENS, ranks=2, strategy="zero1"), 1e-5, marks=long),
        (dict(TOKENS, ranks=2, strategy="fsdp", activation_checkpointing="full"), 1e-5),
        pytest.param(dict(TOKENS, activation_checkpointing="selective"), 1e-5, marks=long),
    ],
    ids=lambda way: " ".join(f"{v}" for v in way.values() if isinstance(v, str)) if isinstance(way, dict) else "",
)
def test_the_card_follows_the_cpu(way, tolerance):
    found, base = measured(**way), measured("cpu", **way)
    assert apart(found, base) <= tolerance
    assert found["evaluation"]["count"] == base["evaluation"]["count"]
    assert kept(found) == kept(base) and min(found["peak_memory_bytes"]) > 0


@pytest.mark.parametrize(
    "way", [dict(IMAGES, model=dropout_net), pytest.param(dict(TOKENS, ranks=2, strategy="fsdp"), marks=long)]
)
def test_a_run_goes_on_from_its_checkpoint(way, tmp_path):
    """With the card's own random numbers: dropout after it is what it would have been."""
    measured(**way, checkpoint_dir=str(tmp_path), steps=6)
    rest = measured(**way, checkpoint_dir=str(tmp_path), resume=True)
    assert rest["first_step"] == 6
    assert rest["samples"]["loss"] == pytest.approx(measured(**way)["samples"]["loss"][6:], abs=1e-6)

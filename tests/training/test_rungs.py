"""Two rungs of the ladder differ in what their labels say, and in nothing else."""

import pytest
import torch
from torch import nn

from helpers import RunConfig, launch


def wide():
    """Enough channels and images small enough for a hand-written kernel to be tempting."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, stride=4, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Conv2d(64, 128, 1, bias=False),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def observed(config):
    """How a rank trains as `config` says, as far as a label could hide something."""
    from helpers.training import loop

    found = {}

    class Observed(loop.Run):
        def complete(self):
            weights = dict(self.model.named_parameters())
            found.update(
                threads=torch.get_num_threads(),
                optimizer=type(self.optimizer).__name__,
                modules=[
                    (name, f"{type(m).__module__}.{type(m).__qualname__}", type(m).forward.__module__)
                    for name, m in self.model.named_modules()
                ],
                patched=[name for name, m in self.model.named_modules() if "forward" in vars(m)],
                strides={name: weight.stride() for name, weight in weights.items()},
                flags=[
                    torch.backends.mkldnn.enabled,
                    torch.get_float32_matmul_precision(),
                    torch.are_deterministic_algorithms_enabled(),
                    torch.get_default_dtype(),
                ],
            )
            return super().complete()

    loop.Run = Observed
    measured = loop.train(config)
    return found, measured and measured["samples"]["loss"]


def of_rung(**changes):
    settings = dict(model=wide, data="digits", global_batch=16, steps=3, threads=1, device="cpu", evaluate=False)
    config = RunConfig(**{**settings, "lr": 0.01, **changes})
    return launch(observed, config.processes, config, threads=1, timeout=600)


@pytest.fixture(scope="module")
def baseline():
    return of_rung()[0]


RUNGS = {
    "channels last": {"channels_last": True},
    "bf16": {"precision": "bf16-mixed"},
    "DDP": {"strategy": "ddp", "nproc_per_node": 2},
}


@pytest.mark.parametrize("rung", RUNGS)
def test_a_rung_changes_only_what_its_label_says(baseline, rung):
    (plain, expected), ranks = baseline, of_rung(**RUNGS[rung])
    assert plain["patched"] == []
    for found, _ in ranks:
        for name in ("threads", "optimizer", "modules", "patched", "flags"):
            assert found[name] == plain[name], name
        assert (found["strides"] == plain["strides"]) == (rung != "channels last")
    if rung == "channels last":
        assert ranks[0][1] == pytest.approx(expected, abs=1e-5)

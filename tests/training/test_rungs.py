"""Two rungs of the ladder differ in what their labels say, and in nothing else."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from helpers import RunConfig, launch
from helpers.compiler import operators as profile

COMPUTES = (profile.CONVOLUTION, profile.DEPTHWISE, profile.MATMUL, profile.NORMALISATION, profile.REDUCTION)


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


class Operators(TorchDispatchMode):
    """Collects the names of the operators that run."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.name().partition(".")[0])
        return func(*args, **(kwargs or {}))


def observed(config):
    """How a rank trains as `config` says, as far as a label could hide something."""
    from helpers.training import loop

    torch.backends.cpu.get_cpu_capability = lambda: "AVX2"  # whatever the machine: faster kernels once hid behind it
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

        def _update(self, *batch):
            with Operators() as operators:
                loss = super()._update(*batch)
            found["operators"] = {name for name in operators.names if profile.kind_of(name) in COMPUTES}
            return loss

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
    "DataParallel": {"strategy": "data_parallel", "nproc_per_node": 2},
    "DDP, channels last": {"strategy": "ddp", "nproc_per_node": 2, "channels_last": True},
}
LONG = ("DataParallel", "DDP, channels last")


@pytest.mark.parametrize("rung", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in RUNGS])
def test_a_rung_changes_only_what_its_label_says(baseline, rung):
    (plain, expected), ranks = baseline, of_rung(**RUNGS[rung])
    for found, _ in ranks:
        for name in ("threads", "optimizer", "modules", "patched", "flags"):
            assert found[name] == plain[name], name
        assert (found["strides"] == plain["strides"]) == ("channels last" not in rung)
    if rung == "channels last":
        assert ranks[0][0]["operators"] == plain["operators"]
        assert ranks[0][1] == pytest.approx(expected, abs=1e-5)
    assert plain["patched"] == []

"""Learning rates: what a rule of scaling gives, and which rate each step of a run gets."""

import pytest
import torch
from toys import float64_net, toy_data

from helpers import RunConfig
from helpers.training import schedules
from helpers.training.loop import train


@pytest.mark.parametrize("rule, expected", [("none", 0.05), ("linear", 0.2), ("sqrt", 0.1)])
def test_the_peak_follows_the_batch(rule, expected):
    assert schedules.peak_lr(0.05, rule, 256, 64) == pytest.approx(expected)
    assert schedules.peak_lr(0.05, rule, 64, 64) == pytest.approx(0.05)
    config = RunConfig(lr=0.05, lr_scaling=rule, local_batch=64, strategy="ddp", nproc_per_node=4)
    assert config.peak_lr == pytest.approx(expected)


@pytest.mark.parametrize("schedule, middle", [("linear", 0.5), ("cosine", 0.5), ("cooldown", 1), ("constant", 1)])
def test_decay_begins_after_the_warm_up_and_ends_with_the_run(schedule, middle):
    shares = [schedules.factor(step, 102, schedule, 2) for step in range(103)]
    assert shares[2] == 1 and shares[52] == pytest.approx(middle)
    assert all(0 < share <= 1 for share in shares[:102])
    if schedule != "constant":
        assert shares[2:] == sorted(shares[2:], reverse=True) and shares[102] == pytest.approx(0)
    if schedule == "cooldown":
        assert shares[71] == 1 > shares[73] and shares[87] == pytest.approx(0.5)


def test_a_run_uses_the_rate_of_its_schedule(monkeypatch):
    """6 steps an epoch, 2 epochs, half an epoch of warm-up; twice the base batch."""
    used = []
    real = torch.optim.SGD.step

    def step(self, *args, **kwargs):
        used.append(self.param_groups[0]["lr"])
        return real(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.SGD, "step", step)
    settings = dict(model=float64_net, data=toy_data, global_batch=32, base_batch=16, lr=0.05, lr_scaling="linear")
    settings.update(epochs=2, lr_warmup_epochs=0.5, schedule="linear", evaluate=False, threads=1, device="cpu")
    train(RunConfig(**settings))
    expected = [0.25, 0.5, 0.75, *(1 - k / 9 for k in range(9))]
    assert used == pytest.approx([0.1 * share for share in expected])

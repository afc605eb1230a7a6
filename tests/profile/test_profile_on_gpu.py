"""Where the memory of a GPU and the time of its kernels go."""

import gpu
import pytest
import torch
from gpu import ENV, KIND

import helpers
from helpers import plots
from helpers.training.gpt import gpt, next_token_loss

pytestmark = gpu.MARKS


def steps(count):
    with helpers.distributed() as world:
        torch.manual_seed(0)
        model = gpt(layers=4, width=128, heads=4).to(world.device)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(count):
            tokens = torch.randint(0, 60, (8, 17), device=world.device)
            next_token_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return sum(4 * p.numel() for p in model.parameters())


def test_memory_is_counted_by_kind():
    found = helpers.memory(steps, 1, 3, env=ENV, timeout=300)
    weights, most = found.answers[0], found.most()
    # Allocators round sizes up: CUDA's to 512 bytes.
    assert most["parameters"] == pytest.approx(weights, rel=0.02) == most["gradients"]
    assert most["optimizer state"] == pytest.approx(2 * weights, rel=0.02) and most["activations"] > 0
    assert {name for name, *_ in found.phases} >= {"forward", "backward", "optimizer"}
    assert plots.style.svg(*found.figure())


def test_a_timeline_has_the_phases_of_the_device():
    found = helpers.timeline(steps, 1, 9, env=ENV, timeout=300)
    spans = [span for span in found.spans if span.row.startswith("stream" if KIND == "cuda" else "")]
    assert {span.kind for span in spans} >= {"forward", "backward", "optimizer"}
    assert plots.style.svg(*found.figure())

"""How often XLA has compiled, from its own metrics, and what a change of shape costs."""

import torch
import torch_xla.debug.metrics as metrics
from torch import nn

from . import xla_step


def count() -> int:
    """Graphs that this process has compiled so far."""
    return metrics.counter_value("UncachedCompile") or 0


def seconds() -> float:
    """Time spent on that so far."""
    data = metrics.metric_data("CompileTime")  # (number, sum in ns, samples)
    return data[1] / 1e9 if data else 0.0


def of_batches(sizes) -> list:
    """Train a small network on random batches of these `sizes`; the compilations after each step, from 0.

    A compiled graph is for one shape: of_batches([16, 16, 12, 12, 16]) is [1, 1, 2, 2, 2].
    """
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 10))
    model, optimizer = xla_step.prepare(network, lr=0.1, momentum=0.9)
    before, counted = count(), []
    for size in sizes:
        xla_step.step(model, optimizer, torch.randn(size, 3, 8, 8), torch.randint(10, (size,)))
        counted.append(count() - before)
    return counted

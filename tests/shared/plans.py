"""Backends, also with planted faults, and models to try them on, for the tests of the compiler path."""

import torch
from torch import nn

from benchmarks.cases.planted import *  # noqa: F403


class Clock:
    """Takes the place of `time` in the trials: only pauses take time, so a busy machine changes no choice."""

    now = 0.0

    def perf_counter(self):
        self.now += 1e-6
        return self.now

    def sleep(self, seconds):
        self.now += seconds


clock = Clock()


# -- backends: (graph module, example inputs) -> callable ---------------------------------


def fewer(graph, inputs):
    """A backend that is right, and leaves out pauses."""
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and "pause" in str(node.target):
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.recompile()
    return graph.forward


def slow(graph, inputs):
    """A backend that is right and slower."""

    def call(*args):
        clock.sleep(0.003)
        return graph.forward(*args)

    return call


def fails_in_backward(graph, inputs):
    """An exception in the second backward pass."""
    calls = []

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            calls.append(1)
            if len(calls) == 2:
                raise RuntimeError("the second time")
            return gradient

    return lambda *args: tuple(Fails.apply(o) for o in graph.forward(*args))


# -- models -------------------------------------------------------------------------------


@torch.library.custom_op("planted::pause", mutates_args=())
def pause(x: torch.Tensor) -> torch.Tensor:
    """`x`, after ten milliseconds."""
    clock.sleep(0.01)
    return x.clone()


pause.register_fake(torch.empty_like)
pause.register_autograd(lambda ctx, gradient: gradient)


class Pauses(nn.Module):
    """A layer with a pause that a compiler can leave out: slow in eager."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        return pause(self.layer(x))


class Everything(nn.Module):
    """What makes a model awkward: random numbers, buffers, tied and frozen weights, a named argument, a dict."""

    def __init__(self):
        super().__init__()
        self.words, self.inside = nn.Embedding(20, 8), nn.Linear(8, 8)
        self.norm, self.dropout = nn.BatchNorm1d(8), nn.Dropout(0.3)
        self.out = nn.Linear(8, 20, bias=False)
        self.out.weight = self.words.weight
        self.inside.bias.requires_grad_(False)

    def forward(self, words, *, scale=1.0):
        hidden = self.dropout(self.norm(self.inside(self.words(words).mean(1)).relu()))
        return {"scores": self.out(hidden) * scale, "hidden": hidden, "words": words}


def conv_net():
    """A small network with BatchNorm for images [N, 3, 8, 8]."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


def train(model, inputs, steps=200, lr=0.01, loss=lambda outputs: outputs.square().mean(), whole=None):
    """Train until the tuner has chosen, or for at most `steps`; returns losses: `whole(model, inputs)`, if given."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9), []
    inner = getattr(model, "module", model)
    for _ in range(steps):
        optimizer.zero_grad()
        value = whole(model, inputs) if whole else loss(model(inputs))
        value.backward()
        optimizer.step()
        losses.append(value.item())
        if getattr(inner, "tuner", None) is not None and inner.tuner.done:
            break
    return losses

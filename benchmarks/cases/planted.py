"""Backends with planted faults: (graph module, example inputs) -> callable. The tests use them too."""

import torch


def same(graph, inputs):
    """Right, and no faster."""
    return graph.forward


def off_by_5_percent(graph, inputs):
    """Outputs, and with them gradients, are 5 % too large."""
    return lambda *args: tuple(o * 1.05 for o in graph.forward(*args))


class _Louder(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 1.05


def wrong_gradient(graph, inputs):
    """Outputs are right, gradients 5 % too large."""
    return lambda *args: tuple(_Louder.apply(o) for o in graph.forward(*args))


def one_wrong_bias(graph, inputs):
    """Outputs are right; of all gradients the smallest parameter's is zero."""
    small = min((place for place, i in enumerate(inputs) if i.requires_grad), key=lambda place: inputs[place].numel())
    return lambda *args: graph.forward(*(a.detach() if place == small else a for place, a in enumerate(args)))


def not_a_number(graph, inputs):
    """Outputs that are not numbers."""
    return lambda *args: tuple(o * float("nan") for o in graph.forward(*args))


def fails_to_compile(graph, inputs):
    """An exception while compiling."""
    raise RuntimeError("no such instruction")


def fails_at_step_3(graph, inputs):
    """An exception when the compiled code runs for the third time."""
    calls = []

    def call(*args):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("the third time")
        return graph.forward(*args)

    return call


FAULTS = {
    "off_by_5_percent": "rejected",
    "wrong_gradient": "rejected",
    "one_wrong_bias": "rejected",
    "not_a_number": "rejected",
    "fails_to_compile": "failed",
    "fails_at_step_3": "failed",
}

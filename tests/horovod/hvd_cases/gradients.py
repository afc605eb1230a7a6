"""Cases of gradients through collectives, as Horovod has them."""

import itertools

import numpy as np
import torch

import platforms.horovod.torch as hvd

from .forms import block, exchanged, gathered
from .lab import FLOATS, case, reduced, same, values, wide


def slope(function, tensor, weights):
    """The gradient of `tensor` where its outcome is weighted by `weights` (a function of the outcome's shape)."""
    tensor = tensor.detach().requires_grad_()
    outcome = function(tensor)
    assert outcome.requires_grad
    outcome.backward(weights(outcome))
    return tensor.grad


def weighted(shapes, dtype):
    """What each rank weights its outcome by; the ranks' outcomes may differ in shape."""
    return [values(r, shape, dtype, 99) for r, shape in enumerate(shapes)]


def check(function, tensors, weights, want, group=None):
    """`function` of this rank's tensor, and in `group` (its grouped form) of the tensor and a second one, halved."""
    rank = hvd.rank()
    same(slope(function, tensors[rank], lambda o: weights[rank]), want, tensors[rank].dtype, what=str(function))
    if group is not None:
        given = [tensors[rank].clone().requires_grad_() for _ in range(3)]
        given[2].requires_grad_(False)
        results = group(given)
        ((results[0] + results[1] / 2) * weights[rank]).sum().backward()
        same(given[0].grad, want, what=str(group)), same(given[1].grad, wide(torch.as_tensor(want)) / 2)
        assert given[2].grad is None


@case("gradients")
def of_reductions():
    """As Horovod has it: that of a reducescatter with Sum is gathered and multiplied by the number of ranks."""
    size = hvd.size()
    for dtype, (op, factor) in itertools.product(FLOATS[2:], ((hvd.Sum, size), (hvd.Average, 1))):
        options = {"op": op, "prescale_factor": 0.5, "postscale_factor": 4.0}
        for shape in ((), (4,), (0, 2), (2, 3)):
            weights = weighted([shape] * size, dtype)
            check(
                lambda t, o=options: hvd.allreduce(t, **o),
                [torch.ones(shape, dtype=dtype)] * size,
                weights,
                reduced(weights, op) * 2,
                lambda ts, o=options: hvd.grouped_allreduce(ts, **o),
            )
        for rows in (2 * size, 2 * size + 1):
            blocks = [block(size, r, rows) for r in range(size)]
            weights = weighted([(b.stop - b.start, 3) for b in blocks], dtype)
            check(
                lambda t, o=options: hvd.reducescatter(t, **o),
                [torch.ones(rows, 3, dtype=dtype)] * size,
                weights,
                gathered(weights) * factor * 2,
                lambda ts, o=options: hvd.grouped_reducescatter(ts, **o),
            )
    expanded = torch.ones(3, 2).requires_grad_()
    hvd.allreduce(expanded, op=hvd.Sum).sum().backward()  # the gradient of a sum is an expanded tensor
    assert expanded.grad.eq(size).all()
    pressed = slope(lambda t: hvd.allreduce(t, compression=hvd.Compression.fp16), torch.ones(3), torch.ones_like)
    same(pressed, np.ones(3), torch.float32)


@case("gradients")
def of_moves():
    size, rank = hvd.size(), hvd.rank()
    for rows in ((2, 2, 2, 2), (1, 0, 3, 2), (0, 2, 0, 0)):
        rows = rows[:size]
        weights = weighted([(sum(rows), 3)] * size, torch.float32)
        want = reduced(weights, hvd.Average)[sum(rows[:rank]) : sum(rows[: rank + 1])]
        check(hvd.allgather, [torch.ones(n, 3) for n in rows], weights, want, hvd.grouped_allgather)
    weights = weighted([(4, 2)] * size, torch.float64)
    for root in range(size):
        want = reduced(weights, hvd.Average) * (rank == root)
        check(lambda t, r=root: hvd.broadcast(t, r), [torch.ones(4, 2).double()] * size, weights, want)
    for salt in range(4):
        sent = np.random.default_rng(salt).integers(0, 4, (size, size))
        weights = weighted([(n, 2) for n in sent.sum(0)], torch.float32)
        given = [torch.ones(n, 2) for n in sent.sum(1)]
        want = exchanged(weights, sent.T, rank)
        check(lambda t, splits=sent[rank]: hvd.alltoall(t, splits)[0], given, weights, want)
    weights = weighted([(2 * size,)] * size, torch.float32)
    want = exchanged(weights, np.full((size, size), 2), rank)
    check(hvd.alltoall, [torch.ones(2 * size)] * size, weights, want)

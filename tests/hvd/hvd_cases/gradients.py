"""Cases of gradients through collectives, as Horovod has them."""

import itertools

import numpy as np
import torch

import helpers.hvd.torch as hvd

from .lab import FLOATS, case, everyone, reduced, same, values, wide
from .move import block, exchanged, gathered, plan


def slope(function, tensor, weights):
    """The gradient of `tensor` where its outcome is weighted by `weights` (a function of the outcome's shape)."""
    tensor = tensor.detach().requires_grad_()
    outcome = function(tensor)
    assert outcome.requires_grad
    outcome.backward(weights(outcome))
    return tensor.grad


@case("gradients")
def of_allreduce():
    size, rank = hvd.size(), hvd.rank()
    for dtype, shape in itertools.product((torch.float32, torch.float64), ((), (4,), (0, 2), (2, 3))):
        weights = [values(r, shape, dtype, 99) for r in range(size)]
        for op in (hvd.Sum, hvd.Average):
            got = slope(
                lambda t, op=op: hvd.allreduce(t, op=op), torch.ones(shape, dtype=dtype), lambda o, w=weights: w[rank]
            )
            same(got, reduced(weights, op), dtype)
        got = slope(
            lambda t: hvd.allreduce(t, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0),
            torch.ones(shape, dtype=dtype), lambda o, w=weights: w[rank],
        )  # fmt: skip
        same(got, reduced(weights, hvd.Sum) * 2, dtype)
    expanded = torch.ones(3, 2).requires_grad_()
    hvd.allreduce(expanded, op=hvd.Sum).sum().backward()  # the gradient of a sum is an expanded tensor
    assert expanded.grad.eq(size).all()
    pressed = slope(lambda t: hvd.allreduce(t, compression=hvd.Compression.fp16), torch.ones(3), torch.ones_like)
    same(pressed, np.ones(3), torch.float32)


@case("gradients")
def of_grouped_allreduce():
    size, rank = hvd.size(), hvd.rank()
    for op in (hvd.Sum, hvd.Average):
        tensors = [torch.ones(n + 1, 2, requires_grad=True) for n in range(3)]
        results = hvd.grouped_allreduce(tensors, op=op)
        sum((n + 1) * (rank + 1) * result.sum() for n, result in enumerate(results)).backward()
        total = sum(range(1, size + 1)) / (size if op == hvd.Average else 1)
        for n, tensor in enumerate(tensors):
            same(tensor.grad, np.full((n + 1, 2), (n + 1) * total), torch.float32)
    frozen, free = torch.ones(2), torch.ones(2, requires_grad=True)
    hvd.grouped_allreduce([frozen, free], op=hvd.Sum)[1].sum().backward()
    assert frozen.grad is None and free.grad.eq(size).all()


@case("gradients")
def of_allgather():
    size, rank = hvd.size(), hvd.rank()
    for rows in ((2, 2, 2, 2), (1, 0, 3, 2), (0, 2, 0, 0)):
        rows = rows[:size]
        inputs = [torch.ones(n, 3) for n in rows]
        weights = [values(r, (sum(rows), 3), torch.float32, 5) for r in range(size)]
        want = reduced(weights, hvd.Average)[sum(rows[:rank]) : sum(rows[: rank + 1])]
        same(slope(hvd.allgather, inputs[rank], lambda o, w=weights: w[rank]), want, torch.float32)
        tensors = [torch.ones(rows[rank], 3, requires_grad=True) for _ in range(2)]
        results = hvd.grouped_allgather(tensors)
        (results[0] * weights[rank]).sum().add(2 * results[1].sum()).backward()
        same(tensors[0].grad, want, torch.float32)
        same(tensors[1].grad, np.full((rows[rank], 3), 2.0), torch.float32)


@case("gradients")
def of_broadcast():
    size, rank = hvd.size(), hvd.rank()
    weights = everyone((4, 2), torch.float64, 3)
    for root in range(size):
        got = slope(
            lambda t, root=root: hvd.broadcast(t, root), torch.ones(4, 2).double(), lambda o, w=weights: w[rank]
        )
        same(got, reduced(weights, hvd.Average) * (rank == root), torch.float64)


@case("gradients")
def of_alltoall():
    size, rank = hvd.size(), hvd.rank()
    for salt in range(4):
        sent = plan(salt, size)
        taken = [values(r, (sent[:, r].sum(), 2), torch.float32, salt) for r in range(size)]  # weights by receiver
        want = exchanged(taken, sent.T, rank)
        got = slope(
            lambda t, sent=sent: hvd.alltoall(t, splits=torch.tensor(sent[rank], dtype=torch.int32))[0],
            torch.ones(sent[rank].sum(), 2), lambda o, taken=taken: taken[rank],
        )  # fmt: skip
        same(got, want, torch.float32)
    taken = everyone((2 * size,), torch.float32, 9)
    got = slope(hvd.alltoall, torch.ones(2 * size), lambda o: taken[rank])
    same(got, exchanged(taken, np.full((size, size), 2), rank), torch.float32)


@case("gradients")
def of_reducescatter():
    """As Horovod has it: the sum's gradient is gathered and multiplied by the number of ranks."""
    size, rank = hvd.size(), hvd.rank()
    for rows, (op, factor) in itertools.product((2 * size, 2 * size + 1), ((hvd.Sum, size), (hvd.Average, 1))):
        weights = [
            values(r, (block(size, r, rows).stop - block(size, r, rows).start, 3), torch.float32, 4)
            for r in range(size)
        ]
        want = gathered(weights) * factor
        got = slope(lambda t, op=op: hvd.reducescatter(t, op=op), torch.ones(rows, 3), lambda o, w=weights: w[rank])
        same(got, want, torch.float32)
        tensors = [torch.ones(rows, 3, requires_grad=True) for _ in range(2)]
        results = hvd.grouped_reducescatter(tensors, op=op)
        (results[0] * weights[rank]).sum().add(results[1].sum()).backward()
        same(tensors[0].grad, want, torch.float32)
        same(tensors[1].grad, np.full((rows, 3), factor), torch.float32)


@case("gradients")
def a_small_net_across_ranks_learns_as_on_one():
    size, rank = hvd.size(), hvd.rank()
    torch.manual_seed(0)
    weight, data = torch.randn(3, 2, dtype=torch.float64), torch.randn(2 * size, 3, dtype=torch.float64)
    alone = weight.clone().requires_grad_()
    (data @ alone).tanh().pow(2).mean().backward()
    mine = weight.clone().requires_grad_()
    rows = hvd.allgather((data[2 * rank : 2 * rank + 2] @ mine).tanh())  # every rank sees the whole batch
    (rows.pow(2).mean()).backward()
    got = hvd.allreduce(mine.grad, op=hvd.Sum)
    same(got, wide(alone.grad), torch.float64, 1e-12)


@case("gradients")
def are_not_asked_of_whole_numbers_or_without_grad():
    for dtype in (*FLOATS, torch.int64):
        assert not hvd.allreduce(torch.ones(2, dtype=dtype)).requires_grad
    with torch.no_grad():
        assert not hvd.allgather(torch.ones(2, requires_grad=True)).requires_grad

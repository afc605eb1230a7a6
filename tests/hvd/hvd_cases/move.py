"""Cases of collectives that move rows: allgather, broadcast, alltoall, reducescatter."""

import numpy as np
import torch

import helpers.hvd.torch as hvd

from .lab import NUMBERS, case, everyone, healthy, pairs, reduced, refused, same, values, wide

CARRIED = NUMBERS + (torch.bool, torch.complex64)
ROWS = ((2, 2, 2, 2), (1, 2, 3, 4), (0, 3, 0, 1), (5, 0, 0, 0), (0, 0, 0, 0))


def gathered(inputs):
    return np.concatenate([wide(tensor) for tensor in inputs])


def block(size, rank, rows):
    """The rows of `rank` when `rows` are scattered: the first ranks get one more where it does not come out even."""
    low = rank * (rows // size) + min(rank, rows % size)
    return slice(low, low + rows // size + (rank < rows % size))


@case("move")
def allgather_of_every_dtype_with_uneven_rows():
    waiting = []
    for salt, (dtype, rows, tail) in enumerate(pairs(CARRIED, ROWS, ((), (3,), (2, 2), (0,)))):
        inputs = [values(rank, (rows[rank], *tail), dtype, salt) for rank in range(hvd.size())]
        mine = inputs[hvd.rank()]
        if salt % 7 == 0:
            same(hvd.allgather(mine), gathered(inputs), dtype, 1e-6, what=f"{dtype} {rows} {tail}")
        waiting.append((hvd.allgather_async(mine, name=f"gather {salt}"), inputs, dtype))
    for handle, inputs, dtype in waiting:
        same(hvd.synchronize(handle), gathered(inputs), dtype, 1e-6, what=f"{dtype} {inputs[0].shape}")


@case("move")
def allgather_of_tensors_with_gaps():
    inputs = everyone((4, 6), torch.float32)
    for view in (lambda t: t.t(), lambda t: t[:, ::3], lambda t: t[0], lambda t: t[:2].expand(2, 6)):
        same(hvd.allgather(view(inputs[hvd.rank()])), gathered([view(i).contiguous() for i in inputs]))


@case("move")
def grouped_allgather():
    inputs = [[values(rank, (rank + n, n), torch.float64, n) for rank in range(hvd.size())] for n in range(4)]
    inputs.append(everyone((2,), torch.uint8))
    mine = [tensors[hvd.rank()] for tensors in inputs]
    for results in (hvd.grouped_allgather(mine), hvd.synchronize(hvd.grouped_allgather_async(mine, name="all"))):
        for result, tensors in zip(results, inputs, strict=True):
            same(result, gathered(tensors), tensors[0].dtype)


@case("move")
def scalars_cannot_be_gathered_or_scattered():
    for function in (hvd.allgather, hvd.reducescatter, hvd.alltoall):
        with refused():
            function(torch.tensor(1.0))
        healthy()


@case("move")
def broadcast_from_every_root():
    waiting = []
    roots = range(hvd.size())
    for salt, (dtype, shape, root) in enumerate(pairs(CARRIED, ((), (3,), (0, 2), (2, 3), (4,)), roots)):
        mine = values(hvd.rank(), shape, dtype, salt)
        want, what = values(root, shape, dtype, salt), f"{dtype} {shape} from {root}"
        if dtype in (torch.float32, torch.bool):
            same(hvd.broadcast(mine, root), want, what=what)
            changed = mine.clone()
            assert hvd.broadcast_(changed, root_rank=root).data_ptr() == changed.data_ptr()
            same(changed, want, what=f"{what} in place")
        before = mine.clone()
        waiting.append((hvd.broadcast_async(mine, root, name=what), want, mine, before))
        there = mine.clone()
        waiting.append((hvd.broadcast_async_(there, root, name=f"{what}, there"), want, there, want))
    for handle, want, mine, after in waiting:
        same(hvd.synchronize(handle), want)
        assert torch.equal(mine, after)


@case("move")
def broadcast_into_tensors_with_gaps():
    for root in range(hvd.size()):
        for view in (lambda t: t.t(), lambda t: t[:, ::2], lambda t: t[1], lambda t: t[:, 3]):
            bases = everyone((4, 6), torch.int32)
            mine = bases[hvd.rank()].clone()
            same(hvd.broadcast(view(mine), root), view(bases[root]))
            assert torch.equal(mine, bases[hvd.rank()])
            hvd.broadcast_(view(mine), root)
            want = bases[hvd.rank()].clone()
            view(want).copy_(view(bases[root]))
            assert torch.equal(mine, want)


def plan(salt, size, most=4):
    """How many rows each rank sends to each: a matrix [from, to]."""
    return np.random.default_rng(salt).integers(0, most, (size, size))


def exchanged(inputs, sent, rank):
    starts = np.concatenate([np.zeros((len(sent), 1), int), np.cumsum(sent, 1)], 1)
    return np.concatenate([wide(t)[starts[r][rank] : starts[r][rank + 1]] for r, t in enumerate(inputs)])


@case("move")
def alltoall_with_splits():
    size, rank = hvd.size(), hvd.rank()
    plans = [plan(n, size) for n in range(6)] + [np.zeros((size, size), int), np.eye(size, dtype=int) * 3]
    silent, deaf = plan(7, size) + 1, plan(8, size) + 1
    silent[0], deaf[:, size - 1] = 0, 0
    plans += [silent, deaf]
    for salt in range(3 * len(CARRIED)):
        dtype, sent = CARRIED[salt % len(CARRIED)], plans[salt % len(plans)]
        tail = ((), (2,), (2, 3))[salt % 3]
        inputs = [values(r, (sent[r].sum(), *tail), dtype, salt) for r in range(size)]
        kind = (lambda s: torch.tensor(s, dtype=torch.int32), lambda s: torch.tensor(s), list)[salt % 3]
        got, received = hvd.alltoall(inputs[rank], splits=kind(sent[rank].tolist()))
        same(got, exchanged(inputs, sent, rank), dtype, 1e-6, what=f"{dtype} {sent.tolist()}")
        assert received.tolist() == sent[:, rank].tolist()
        assert not received.dtype.is_floating_point


@case("move")
def alltoall_in_equal_parts():
    size, rank = hvd.size(), hvd.rank()
    for rows in (0, 1, 3):
        inputs = everyone((rows * size, 2), torch.int64, rows)
        sent = np.full((size, size), rows)
        got = hvd.alltoall(inputs[rank])
        assert isinstance(got, torch.Tensor), "received_splits come only where splits were given"
        same(got, exchanged(inputs, sent, rank), torch.int64)
    sent = np.repeat(np.arange(size)[:, None], size, 1)
    inputs = [values(r, (r * size,), torch.float32) for r in range(size)]
    got, received = hvd.synchronize(hvd.alltoall_async(inputs[rank], name="equal"))
    same(got, exchanged(inputs, sent, rank), torch.float32)
    assert received.tolist() == list(range(size))


@case("move")
def alltoall_may_keep_rows_back():
    size, rank = hvd.size(), hvd.rank()
    inputs = everyone((size + 5,), torch.float32)
    got, _ = hvd.alltoall(inputs[rank], splits=torch.ones(size, dtype=torch.int32))
    same(got, exchanged(inputs, np.ones((size, size), int), rank))


@case("move")
def bad_splits_are_refused_by_everyone():
    size = hvd.size()
    bad = [
        (size - 1, torch.ones(size, dtype=torch.int32)), (size, torch.ones(size)), (size, [1] * (size + 1)),
        (size, torch.ones(1, size, dtype=torch.int32)), (size, [-1] + [1] * (size - 1)),
    ]  # fmt: skip
    for rows, splits in bad:
        with refused(error=(ValueError, RuntimeError, TypeError)):
            hvd.alltoall(torch.ones(rows), splits=splits)
        healthy(f"after {rows} rows in {splits}")
    if size > 1:
        with refused():
            hvd.alltoall(torch.ones(size + 1))
        healthy()


@case("move")
def reducescatter_even_and_uneven():
    size, rank = hvd.size(), hvd.rank()
    waiting = []
    choices = pairs(NUMBERS, sorted({4 * size, 4 * size + 1, 2 * size - 1, size - 1, 1, 0}), ((), (3,)))
    for salt, (dtype, rows, tail) in enumerate(choices):
        inputs = everyone((rows, *tail), dtype, salt, low=0)
        for op in (hvd.Sum, hvd.Average):
            want = reduced(inputs, op)[block(size, rank, rows)]
            what = f"{op} of {dtype}, {rows} rows of {tail}"
            if salt % 5 == 0:
                same(hvd.reducescatter(inputs[rank], op=op), want, dtype, what=what)
            waiting.append((hvd.reducescatter_async(inputs[rank], name=what, op=op), want, dtype, what))
    for handle, want, dtype, what in waiting:
        same(hvd.synchronize(handle), want, dtype, what=what)
    inputs = everyone((size + 1, 2), torch.float32)
    want = reduced(inputs, hvd.Average)[block(size, rank, size + 1)]
    same(hvd.reducescatter(inputs[rank]), want, what="the default is the average")
    got = hvd.reducescatter(inputs[rank], op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    same(got, want * size * 2, tolerance=1e-6, what="scaled")
    same(
        hvd.reducescatter(inputs[rank].t(), op=hvd.Sum), reduced([i.t() for i in inputs], hvd.Sum)[block(size, rank, 2)]
    )
    same(hvd.reducescatter(inputs[rank], compression=hvd.Compression.fp16), want, torch.float32, 1e-3)


@case("move")
def reducescatter_of_other_operations_is_right_or_refused():
    size, rank = hvd.size(), hvd.rank()
    inputs = everyone((2 * size,), torch.float32)
    for op in (hvd.Min, hvd.Max, hvd.Product):
        try:
            got = hvd.reducescatter(inputs[rank], op=op)
        except ERRORS_OR_UNSUPPORTED:
            continue
        same(got, reduced(inputs, op)[block(size, rank, 2 * size)])
    with refused(error=ERRORS_OR_UNSUPPORTED):
        hvd.reducescatter(inputs[rank], op=hvd.Adasum)
    healthy()


ERRORS_OR_UNSUPPORTED = (RuntimeError, ValueError, NotImplementedError)


@case("move")
def grouped_reducescatter():
    size, rank = hvd.size(), hvd.rank()
    rows = (size, 2 * size + 1, 1, 0)
    inputs = [everyone((n, 2), torch.float64, n) for n in rows]
    mine = [tensors[rank] for tensors in inputs]
    later = hvd.grouped_reducescatter_async(mine, name="scattered", op=hvd.Sum)
    for results in (hvd.grouped_reducescatter(mine, op=hvd.Sum), hvd.synchronize(later)):
        for result, tensors, n in zip(results, inputs, rows, strict=True):
            same(result, reduced(tensors, hvd.Sum)[block(size, rank, n)], torch.float64)
    for result, tensors, n in zip(hvd.grouped_reducescatter(mine), inputs, rows, strict=True):
        same(result, reduced(tensors, hvd.Average)[block(size, rank, n)], torch.float64)

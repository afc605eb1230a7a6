"""Cases of helpers.hvd.arrays: the same operations on NumPy arrays."""

import itertools

import numpy as np

import helpers.hvd.arrays as hvd
import helpers.hvd.core as core

from .lab import case

DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
ORACLE = {core.Sum: np.sum, core.Min: np.min, core.Max: np.max, core.Product: np.prod}


def numbers(rank, shape, dtype, salt=0, low=1, high=3):
    return np.random.default_rng([salt, rank]).integers(low, high, shape).astype(dtype)


def inputs(shape, dtype, salt=0, **bounds):
    return [numbers(rank, shape, dtype, salt, **bounds) for rank in range(core.size())]


def same(got, want, dtype=None):
    assert isinstance(got, np.ndarray) or np.isscalar(got), type(got)
    assert dtype is None or got.dtype == dtype, f"{got.dtype}, not {dtype}"
    np.testing.assert_allclose(np.asarray(got, "float64"), np.asarray(want, "float64"), rtol=1e-3, strict=True)


@case("arrays")
def reductions():
    choices = itertools.product(ORACLE.items(), DTYPES, ((), (3,), (0,), (2, 3), (0, 2)))
    waiting = []
    for salt, ((op, oracle), dtype, shape) in enumerate(choices):
        arrays = inputs(shape, dtype, salt)
        mine, want = arrays[core.rank()], oracle(np.stack(arrays), axis=0)
        waiting.append((hvd.allreduce_async(mine, name=f"{salt}", op=op), want, dtype))
        if salt % 9 == 0:
            same(hvd.allreduce(mine, op=op), want, dtype)
    for handle, want, dtype in waiting:
        same(hvd.synchronize(handle), want, dtype)


@case("arrays")
def in_place_scaled_grouped_and_strided():
    arrays = inputs((4, 6), "float32")
    mine, total = arrays[core.rank()].copy(), np.sum(arrays, 0)
    same(hvd.allreduce(mine), total / core.size(), "float32")
    same(hvd.allreduce(mine.T, op=core.Sum), total.T)
    same(hvd.allreduce(mine[:, ::-2], op=core.Sum), total[:, ::-2])
    same(hvd.allreduce(mine, op=core.Sum, prescale_factor=0.5, postscale_factor=4.0), total * 2)
    one, two = hvd.grouped_allreduce([mine, mine[0]], op=core.Sum)
    same(one, total), same(two, total[0])
    one, _ = hvd.synchronize(hvd.grouped_allreduce_async([mine, mine[0]], name="two", op=core.Sum))
    same(one, total)
    mine.flags.writeable = False
    same(hvd.allreduce(mine, op=core.Sum), total)
    there = arrays[core.rank()].copy()
    hvd.allreduce_(there, op=core.Sum)
    same(there, total)
    part = arrays[core.rank()].copy()
    hvd.allreduce_(part[:, ::2], op=core.Sum)
    same(part[:, ::2], total[:, ::2]), same(part[:, 1::2], arrays[core.rank()][:, 1::2])
    big = np.full(3, core.rank() + 1.0, ">f8")
    same(hvd.allreduce(big, op=core.Sum), np.full(3, sum(range(core.size() + 1))))


@case("arrays")
def moves():
    size, rank = core.size(), core.rank()
    for dtype in (*DTYPES, "bool"):
        rows = [numbers(r, (r, 2), dtype) for r in range(size)]
        same(hvd.allgather(rows[rank]), np.concatenate(rows), dtype)
        equal = inputs((3,), dtype, 1)
        for root in range(size):
            same(hvd.broadcast(equal[rank], root), equal[root], dtype)
            there = equal[rank].copy()
            hvd.broadcast_(there, root)
            same(there, equal[root])
    got, received = hvd.alltoall(np.full(size * (rank + 1), rank), splits=[rank + 1] * size)
    assert got.tolist() == [r for r in range(size) for _ in range(r + 1)]
    assert list(received) == list(range(1, size + 1))
    assert hvd.alltoall(np.arange(size)).tolist() == [rank] * size
    part = hvd.reducescatter(np.full((size + 1, 2), rank + 1.0), op=core.Sum)
    same(part, np.full((2 if rank == 0 else 1, 2), sum(range(1, size + 1))))


@case("arrays")
def brain_floats():
    try:
        import ml_dtypes  # comes with TensorFlow
    except ImportError:
        return
    mine = np.full(3, core.rank() + 1.0, ml_dtypes.bfloat16)
    got = hvd.allreduce(mine, op=core.Sum)
    assert got.dtype == ml_dtypes.bfloat16 and got.tolist() == [sum(range(core.size() + 1))] * 3
    assert hvd.allgather(mine).dtype == ml_dtypes.bfloat16
    assert hvd.broadcast(mine, 0).tolist() == [1.0] * 3


@case("arrays")
def objects_join_and_barrier():
    size, rank = core.size(), core.rank()
    assert hvd.allgather_object({"rank": rank, "text": "x" * (rank * 1000)}) == [
        {"rank": r, "text": "x" * (r * 1000)} for r in range(size)
    ]
    for root in range(size):
        assert hvd.broadcast_object({"of": rank} if rank == root else None, root) == {"of": root}
    assert hvd.broadcast_object(None, root_rank=0, name="nothing") is None
    hvd.barrier()
    if rank > 0:
        same(hvd.allreduce(np.ones(2), name="late", op=core.Sum), np.full(2, size - 1.0))
    assert hvd.join() in range(size)
    try:
        hvd.allreduce(np.array(["text"]))
    except (TypeError, ValueError):
        pass
    else:
        raise AssertionError("text was reduced")
    same(hvd.allreduce([1.0, 2.0] if rank < 0 else np.array([1.0, 2.0])), [1.0, 2.0])

"""Cases of platforms.horovod.arrays: the same operations on NumPy arrays."""

import numpy as np
import torch

import platforms.horovod.arrays as hvd
import platforms.horovod.core as core

from .forms import FORMS, acts, begin
from .lab import NUMBERS, case


def same(got, want, dtype=None):
    assert isinstance(got, np.ndarray) or np.isscalar(got), type(got)
    assert dtype is None or got.dtype == dtype, f"{got.dtype}, not {dtype}"
    np.testing.assert_allclose(np.asarray(got, "float64"), np.asarray(want, "float64"), rtol=1e-3, strict=True)


@case("arrays")
def every_form():
    forms = [form for form in FORMS if hasattr(hvd, form)]
    assert len(forms) == 10, forms
    dtypes = [dtype for dtype in (*NUMBERS, torch.bool) if dtype is not torch.bfloat16]
    for check in [begin(act, api=hvd) for act in acts(list(range(core.size())), forms, dtypes)]:
        check()
    assert hvd.alltoall(np.arange(core.size())).tolist() == [core.rank()] * core.size()


@case("arrays")
def other_layouts():
    arrays = [np.random.default_rng(rank).random((4, 6), "float32") for rank in range(core.size())]
    mine, total = arrays[core.rank()].copy(), np.sum(arrays, 0)
    same(hvd.allreduce(mine), total / core.size(), "float32")
    same(hvd.allreduce(mine[:, ::-2], op=core.Sum), total[:, ::-2])
    mine.flags.writeable = False
    same(hvd.allreduce(mine, op=core.Sum), total)
    big = np.full(3, core.rank() + 1.0, ">f8")
    same(hvd.allreduce(big, op=core.Sum), np.full(3, sum(range(core.size() + 1))))


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

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

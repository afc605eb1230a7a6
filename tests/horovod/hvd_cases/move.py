"""Cases of collectives that move rows, beyond the table of `forms`: defaults and refusals."""

import numpy as np
import torch

import platforms.horovod.torch as hvd

from .forms import block, exchanged
from .lab import case, everyone, healthy, reduced, refused, same, values


@case("move")
def scalars_cannot_be_gathered_or_scattered():
    for function in (hvd.allgather, hvd.reducescatter, hvd.alltoall):
        with refused():
            function(torch.tensor(1.0))
        healthy()


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
def bad_splits_are_refused_by_everyone():
    size = hvd.size()
    bad = [
        (size - 1, torch.ones(size, dtype=torch.int32)),
        (size, torch.ones(size)),
        (size, [1] * (size + 1)),
        (size, torch.ones(1, size, dtype=torch.int32)),
        (size, [-1] + [1] * (size - 1)),
    ]
    for rows, splits in bad:
        with refused(error=(ValueError, RuntimeError, TypeError)):
            hvd.alltoall(torch.ones(rows), splits=splits)
        healthy(f"after {rows} rows in {splits}")
    if size > 1:
        with refused():
            hvd.alltoall(torch.ones(size + 1))
        healthy()


@case("move")
def reducescatter_by_default_compressed_and_by_other_operations():
    size, rank = hvd.size(), hvd.rank()
    inputs = everyone((size + 1, 2), torch.float32)
    want = reduced(inputs, hvd.Average)[block(size, rank, size + 1)]
    same(hvd.reducescatter(inputs[rank]), want, what="the default is the average")
    same(hvd.reducescatter(inputs[rank], compression=hvd.Compression.fp16), want, torch.float32, 1e-3)
    for op in (hvd.Min, hvd.Max, hvd.Product):
        same(hvd.reducescatter(inputs[rank], op=op), reduced(inputs, op)[block(size, rank, size + 1)])
    with refused(error=NotImplementedError):
        hvd.reducescatter(inputs[rank], op=hvd.Adasum)
    healthy()

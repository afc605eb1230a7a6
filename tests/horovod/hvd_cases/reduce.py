"""Cases of reductions beyond the table of `forms`: rounding, compression, sparse tensors, Adasum, refusals."""

import warnings

import numpy as np
import torch

import platforms.horovod.torch as hvd

from .lab import FLOATS, case, everyone, healthy, reduced, refused, same, wide


@case("reduce")
def booleans_are_combined():
    inputs = everyone((20,), torch.bool)
    mine = inputs[hvd.rank()]
    for op, oracle in ((hvd.Max, np.any), (hvd.Min, np.all), (hvd.Product, np.all), (hvd.Sum, np.any)):
        got = hvd.allreduce(mine, op=op)
        same(got, oracle([wide(i) for i in inputs], axis=0).astype(int), torch.bool)
        assert got.view(torch.uint8).max() <= 1, "a truth value is one bit, not a count"
    with refused("bool"):
        hvd.allreduce(mine, op=hvd.Average)
    healthy()


@case("reduce")
def the_default_is_the_average_and_average_is_deprecated():
    inputs = everyone((3,), torch.float32)
    mine, mean = inputs[hvd.rank()], reduced(inputs, hvd.Average)
    same(hvd.allreduce(mine), mean, torch.float32)
    for average, op in ((True, hvd.Average), (False, hvd.Sum)):
        for function in (hvd.allreduce, lambda *a, **k: hvd.synchronize(hvd.allreduce_async(*a, **k))):
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                same(function(mine, average=average), reduced(inputs, op), torch.float32)
            assert any(issubclass(w.category, DeprecationWarning) for w in said), "average= is deprecated"
        same(hvd.grouped_allreduce([mine], average=average)[0], reduced(inputs, op))
    with refused(error=ValueError):
        hvd.allreduce(mine, average=True, op=hvd.Sum)
    with refused(error=ValueError):
        hvd.allreduce_(mine, average=False, op=hvd.Average)
    same(hvd.allreduce(mine, None, "by position"), mean)


@case("reduce")
def factors_groups_and_expanded_tensors():
    inputs = everyone((4,), torch.float64)
    mine, total = inputs[hvd.rank()], reduced(inputs, hvd.Sum)
    got = hvd.allreduce(mine, op=hvd.Average, prescale_factor=0.5, postscale_factor=3.0)
    same(got, reduced(inputs, hvd.Average) * 1.5, torch.float64)
    handles = [hvd.allreduce_async(mine, op=hvd.Sum, postscale_factor=f) for f in (2.0, 4.0, 8.0)]
    for factor, handle in zip((2.0, 4.0, 8.0), handles, strict=True):
        same(hvd.synchronize(handle), total * factor, what="each tensor of a fusion has its factor")
    mixed = (mine, mine[:3].long(), mine[:2].float())
    for got, given, stop in zip(hvd.grouped_allreduce(mixed, op=hvd.Sum), mixed, (4, 3, 2), strict=True):
        same(got, total[:stop], given.dtype, what="dtypes mixed in a group, which may be a tuple")
    same(hvd.grouped_allreduce([torch.ones(2)])[0], [1.0, 1.0], torch.float32, what="the average")
    one = torch.tensor([hvd.rank() + 1.0])
    same(hvd.allreduce(one.expand(5), op=hvd.Sum), np.full(5, sum(range(hvd.size() + 1))), what="expanded")


@case("reduce")
def compression():
    for dtype in FLOATS + (torch.int64,):
        inputs = everyone((5, 2), dtype)
        for how in (hvd.Compression.none, hvd.Compression.fp16):
            got = hvd.allreduce(inputs[hvd.rank()], op=hvd.Sum, compression=how)
            same(got, reduced(inputs, hvd.Sum), dtype, what=f"{how} {dtype}")
            got = hvd.grouped_allreduce([inputs[hvd.rank()]] * 2, op=hvd.Sum, compression=how)
            same(got[1], reduced(inputs, hvd.Sum), dtype)
    same(hvd.allreduce(torch.ones(3), compression=hvd.Compression.bf16), np.ones(3), torch.float32)
    fine = hvd.allreduce(torch.full((3,), 1.0001), compression=hvd.Compression.fp16)
    assert fine.dtype == torch.float32 and fine[0] == torch.tensor(1.0001).half().float(), "sent in 16 bits"


@case("reduce")
def sparse_tensors():
    size = hvd.size()
    for op in (hvd.Sum, hvd.Average):
        for empty in (False, True):
            dense = [torch.zeros(5, 3) for _ in range(size)]
            for rank in range(size):
                if not (empty and rank == 0):
                    dense[rank][rank % 5] = rank + 1.0
                    dense[rank][4] = 1.0
            handle = hvd.sparse_allreduce_async(dense[hvd.rank()].to_sparse(1), name=f"sparse{op}{empty}", op=op)
            got = handle() if callable(handle) else hvd.synchronize(handle)
            assert got.is_sparse and got.shape == (5, 3)
            same(got.to_dense(), sum(dense) / (size if op == hvd.Average else 1), torch.float32)


@case("reduce")
def what_is_no_tensor_or_no_operation_is_refused():
    two = torch.ones(2)
    for bad, options in (
        (two, {"op": "sum"}),
        (two, {"op": 77}),
        ([1.0, 2.0], {}),
        (two.to_sparse(), {}),
        (two.to("meta"), {}),
        (two.to(torch.float8_e4m3fn), {}),
    ):
        with refused(error=(TypeError, ValueError, RuntimeError, AttributeError)):
            hvd.allreduce(bad, **options)
        healthy()
    with refused("clone"):  # all its elements are one place in memory
        hvd.allreduce_(torch.ones(1).expand(3), op=hvd.Max)
    healthy()


def adasum(one, two):
    """The formula of the paper (arXiv:2006.02924) for two vectors."""
    dot, n1, n2 = float((one * two).sum()), float((one * one).sum()), float((two * two).sum())
    return (1 - dot / (2 * n1) if n1 else 1.0) * one + (1 - dot / (2 * n2) if n2 else 1.0) * two


@case("reduce")
def adasum_in_pairs():
    size, rank = hvd.size(), hvd.rank()
    inputs = everyone((6,), torch.float64, 8)
    inputs[0] = torch.zeros(6).double() if size == 4 else inputs[0]
    if size == 3:
        with refused("Adasum", 3):
            hvd.allreduce(inputs[rank], op=hvd.Adasum)
        return healthy()
    layers = [wide(tensor) for tensor in inputs]
    while len(layers) > 1:
        layers = [adasum(one, two) for one, two in zip(layers[::2], layers[1::2], strict=True)]
    same(hvd.allreduce(inputs[rank], op=hvd.Adasum), layers[0], torch.float64, 1e-12)
    equal = hvd.allreduce(torch.full((3,), 2.0), op=hvd.Adasum)
    same(equal, [2.0] * 3, torch.float32, 1e-6, what="what all agree on is not added up")

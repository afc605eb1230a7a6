"""allreduce and reducescatter on torch tensors; see `mpi_ops`."""

import warnings

import torch

from ..core import Average, ReduceOp, Sum, global_process_set
from .compression import Compression
from .handles import first, submit, synchronize

# The ranks' indices were checked when their tensors were made; newer torch warns unless told.
UNCHECKED = {"check_invariants": False} if hasattr(torch.sparse, "check_sparse_tensor_invariants") else {}


def _reduction(op, average):
    """The name of the reduction that `op` and the older argument `average` ask for."""
    if average is not None:
        if op is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        warnings.warn("Parameter `average` has been replaced with `op`", DeprecationWarning, stacklevel=4)
        op = Average if average else Sum
    return ReduceOp(Average if op is None else op).name


# allreduce


def _allreduce(tensors, outputs, name, op, scales, process_set, answer, average=None):
    return submit(
        "allreduce", list(tensors), outputs, name, process_set, answer,
        op=_reduction(op, average), scales=[float(scale) for scale in scales],
    )  # fmt: skip


def allreduce_async(
    tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0,
    process_set=global_process_set,
):  # fmt: skip
    """Begin to reduce `tensor` over the ranks into a new tensor; returns a handle. See `allreduce`."""
    return _allreduce([tensor], None, name, op, (prescale_factor, postscale_factor), process_set, first, average)


def allreduce_async_(
    tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0,
    process_set=global_process_set,
):  # fmt: skip
    """Begin to reduce `tensor` over the ranks in place; returns a handle. See `allreduce`."""
    return _allreduce([tensor], [tensor], name, op, (prescale_factor, postscale_factor), process_set, first, average)


def allreduce_(
    tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0,
    process_set=global_process_set,
):  # fmt: skip
    """`allreduce` in place."""
    return synchronize(allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set))


def allreduce(
    tensor, average=None, name=None, compression=Compression.none, op=None, prescale_factor=1.0,
    postscale_factor=1.0, process_set=global_process_set,
):  # fmt: skip
    """The average (or sum, …) of the ranks' tensors: postscale · op over ranks of (prescale · tensor).

    Args:
        tensor: any shape, the same on all ranks. Averages of integers are truncated; scaled integers
            are computed in float64 and truncated.
        op: Average (default), Sum, Min, Max, Product, or Adasum (2^k ranks).
        compression: Compression.fp16 or .bf16 sends half the bytes.

    Returns:
        A new tensor. Gradients flow: that of a sum is the sum of the ranks' gradients.
    """
    small, how = compression.compress(tensor)
    scales = prescale_factor, postscale_factor
    (reduced,) = _Allreduce.apply(name, _reduction(op, average), scales, process_set, False, small)
    return compression.decompress(reduced, how)


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, name, op, scales, process_set, grouped, *tensors):
        ctx.given = op, scales, process_set, grouped
        return tuple(synchronize(_allreduce(tensors, None, name, ReduceOp[op], scales, process_set, tuple)))

    @staticmethod
    def backward(ctx, *gradients):
        op, scales, process_set, grouped = ctx.given
        if op not in ("Sum", "Average"):
            raise NotImplementedError(f"the gradient of an allreduce with {op}; Sum and Average have one")
        return (None,) * 5 + _Allreduce.apply(None, op, scales, process_set, grouped, *gradients)


def grouped_allreduce_async(
    tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0,
    process_set=global_process_set,
):  # fmt: skip
    """Begin to reduce a list of tensors at one time into new tensors; returns one handle."""
    return _allreduce(tensors, None, name, op, (prescale_factor, postscale_factor), process_set, list, average)


def grouped_allreduce_async_(
    tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0,
    process_set=global_process_set,
):  # fmt: skip
    """Begin to reduce a list of tensors at one time in place; returns one handle."""
    tensors = list(tensors)
    return _allreduce(tensors, tensors, name, op, (prescale_factor, postscale_factor), process_set, list, average)


def grouped_allreduce_(
    tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0,
    process_set=global_process_set,
):  # fmt: skip
    """`grouped_allreduce` in place."""
    return synchronize(
        grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    )


def grouped_allreduce(
    tensors, average=None, name=None, compression=Compression.none, op=None, prescale_factor=1.0,
    postscale_factor=1.0, process_set=global_process_set,
):  # fmt: skip
    """`allreduce` of a list of tensors, all at one time: none is reduced before all are there on all ranks."""
    pairs = [compression.compress(tensor) for tensor in tensors]
    scales = prescale_factor, postscale_factor
    small = [tensor for tensor, _ in pairs]
    reduced = _Allreduce.apply(name, _reduction(op, average), scales, process_set, True, *small)
    return [compression.decompress(tensor, how) for tensor, (_, how) in zip(reduced, pairs)]


# reducescatter


def _reducescatter(tensors, name, op, scales, process_set, answer):
    name_of_op = ReduceOp(op).name
    if name_of_op == "Adasum":
        raise NotImplementedError("reducescatter with Adasum: it combines whole tensors; use allreduce")
    scales = [float(scale) for scale in scales]
    return submit("reducescatter", list(tensors), None, name, process_set, answer, op=name_of_op, scales=scales)


def reducescatter_async(
    tensor, name=None, op=Average, process_set=global_process_set, prescale_factor=1.0, postscale_factor=1.0
):
    """Begin a `reducescatter`; returns a handle."""
    return _reducescatter([tensor], name, op, (prescale_factor, postscale_factor), process_set, first)


def grouped_reducescatter_async(
    tensors, name=None, op=Average, process_set=global_process_set, prescale_factor=1.0, postscale_factor=1.0
):
    """Begin a `reducescatter` of each of a list of tensors, all at one time; returns one handle."""
    return _reducescatter(tensors, name, op, (prescale_factor, postscale_factor), process_set, list)


def reducescatter(
    tensor, name=None, compression=Compression.none, op=Average, process_set=global_process_set, prescale_factor=1.0,
    postscale_factor=1.0,
):  # fmt: skip
    """This rank's rows of the reduced tensor; where they do not come out even, the first ranks have one more.

    As in Horovod, the gradient of Average is all ranks' gradients put together, that of Sum `size` times that.
    """
    scales = prescale_factor, postscale_factor
    return grouped_reducescatter([tensor], name, compression, op, process_set, *scales)[0]


def grouped_reducescatter(
    tensors, name=None, compression=Compression.none, op=Average, process_set=global_process_set, prescale_factor=1.0,
    postscale_factor=1.0,
):  # fmt: skip
    """`reducescatter` of each of a list of tensors, all at one time."""
    pairs = [compression.compress(tensor) for tensor in tensors]
    small = [tensor for tensor, _ in pairs]
    reduced = _Reducescatter.apply(name, op, process_set, (prescale_factor, postscale_factor), *small)
    return [compression.decompress(tensor, how) for tensor, (_, how) in zip(reduced, pairs)]


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, name, op, process_set, scales, *tensors):
        ctx.given = op, process_set, scales
        return tuple(synchronize(_reducescatter(tensors, name, op, scales, process_set, list)))

    @staticmethod
    def backward(ctx, *gradients):
        op, process_set, scales = ctx.given
        if op not in (Sum, Average):
            raise NotImplementedError(f"the gradient of a reducescatter with {ReduceOp(op).name}")
        factor = scales[0] * scales[1] * (process_set.size() if op == Sum else 1)
        handle = submit("allgather", [factor * each for each in gradients], None, None, process_set, tuple)
        return (None,) * 4 + synchronize(handle)


def sparse_allreduce_async(tensor, name, op, process_set=global_process_set):
    """Begin to reduce a sparse COO tensor by gathering everybody's entries.

    Returns:
        A function without arguments that waits and returns the coalesced sparse tensor; `synchronize` calls it too.
    """
    if op not in (Average, Sum):
        raise ValueError(f"{ReduceOp(op).name} of sparse tensors; Average and Sum are possible")
    given = tensor.coalesce() if not tensor.is_coalesced() else tensor
    indices = submit("allgather", [given._indices().t()], None, f"{name}.indices", process_set, first)
    values = submit("allgather", [given._values()], None, f"{name}.values", process_set, first)

    def finish():
        where, what = synchronize(indices).t(), synchronize(values)
        what = what / process_set.size() if op == Average else what
        return torch.sparse_coo_tensor(where, what, tensor.shape, **UNCHECKED).coalesce()

    return finish

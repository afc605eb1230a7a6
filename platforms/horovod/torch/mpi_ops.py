"""Collectives on torch tensors, by Horovod's names (https://horovod.readthedocs.io/en/stable/api.html).

All ranks of a process set submit the same collectives in the same order; one runs when all of them have. A call without
a name gets the number of calls of its kind. When ranks give different arguments, each of them raises CollectiveError;
when a rank is lost, the others raise RankLost. Both are HorovodInternalErrors, and those are RuntimeErrors.
"""

import functools

import torch

from ..core import *  # noqa: F403  (Horovod has these here too)
from ..core import Average, ReduceOp, Sum, global_process_set, job, rank, reduction, sets
from .compression import Compression
from .handles import first, poll, submit, synchronize, whole_splits  # noqa: F401 - `poll` is for scripts

# Each rank's indices were checked when its tensor was made; newer torch warns unless this is given.
UNCHECKED = {"check_invariants": False} if hasattr(torch.sparse, "check_sparse_tensor_invariants") else {}


def _in_place(name, begin):
    """The blocking form of `begin`, with its arguments."""

    @functools.wraps(begin)
    def waiting(*args, **options):
        return synchronize(begin(*args, **options))

    waiting.__name__ = waiting.__qualname__ = name
    waiting.__doc__ = f"`{name.rstrip('_')}` in place; returns the tensor, or the tensors."
    return waiting


# allreduce


def _allreduce(tensors, outputs, name, op, scales, process_set, answer, average=None):
    options = {"op": reduction(op, average).name, "scales": [float(scales[0]), float(scales[1])]}
    return submit("allreduce", tensors, outputs, name, process_set, answer, **options)


def allreduce_async(
    tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set
):
    """Begin to reduce `tensor` over the ranks into a new tensor; returns a handle. See `allreduce`."""
    return _allreduce([tensor], None, name, op, (prescale_factor, postscale_factor), process_set, first, average)


def allreduce_async_(
    tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set
):
    """Begin to reduce `tensor` over the ranks in place; returns a handle. See `allreduce`."""
    own = [tensor]
    return _allreduce(own, own, name, op, (prescale_factor, postscale_factor), process_set, first, average)


allreduce_ = _in_place("allreduce_", allreduce_async_)


def allreduce(
    tensor,
    average=None,
    name=None,
    compression=Compression.none,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
):
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
    (reduced,) = _Allreduce.apply(name, reduction(op, average).name, scales, process_set, False, small)
    return compression.decompress(reduced, how)


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, name, op, scales, process_set, grouped, *tensors):
        ctx.given = op, scales, process_set, grouped
        return tuple(synchronize(_allreduce(list(tensors), None, name, ReduceOp[op], scales, process_set, tuple)))

    @staticmethod
    def backward(ctx, *gradients):
        op, scales, process_set, grouped = ctx.given
        if op not in ("Sum", "Average"):
            raise NotImplementedError(f"the gradient of an allreduce with {op}; Sum and Average have one")
        return (None,) * 5 + _Allreduce.apply(None, op, scales, process_set, grouped, *gradients)


def grouped_allreduce_async(
    tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set
):
    """Begin to reduce a list of tensors at one time into new tensors; returns one handle."""
    return _allreduce(list(tensors), None, name, op, (prescale_factor, postscale_factor), process_set, list, average)


def grouped_allreduce_async_(
    tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set
):
    """Begin to reduce a list of tensors at one time in place; returns one handle."""
    tensors = list(tensors)
    return _allreduce(tensors, tensors, name, op, (prescale_factor, postscale_factor), process_set, list, average)


grouped_allreduce_ = _in_place("grouped_allreduce_", grouped_allreduce_async_)


def grouped_allreduce(
    tensors,
    average=None,
    name=None,
    compression=Compression.none,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=global_process_set,
):
    """`allreduce` of a list of tensors together: none is reduced before all ranks have submitted all of them."""
    pairs = [compression.compress(tensor) for tensor in tensors]
    scales = prescale_factor, postscale_factor
    small = [tensor for tensor, _ in pairs]
    reduced = _Allreduce.apply(name, reduction(op, average).name, scales, process_set, True, *small)
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
    tensor,
    name=None,
    compression=Compression.none,
    op=Average,
    process_set=global_process_set,
    prescale_factor=1.0,
    postscale_factor=1.0,
):
    """This rank's rows of the reduced tensor; if they cannot be divided evenly, the first ranks get one more.

    As in Horovod, the gradient of Average is all ranks' gradients put together, that of Sum `size` times that.
    """
    scales = prescale_factor, postscale_factor
    return grouped_reducescatter([tensor], name, compression, op, process_set, *scales)[0]


def grouped_reducescatter(
    tensors,
    name=None,
    compression=Compression.none,
    op=Average,
    process_set=global_process_set,
    prescale_factor=1.0,
    postscale_factor=1.0,
):
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


# allgather


def allgather_async(tensor, name=None, process_set=global_process_set):
    """Begin to put the ranks' tensors together; returns a handle. See `allgather`."""
    return submit("allgather", [tensor], None, name, process_set, first)


def grouped_allgather_async(tensors, name=None, process_set=global_process_set):
    """Begin an `allgather` of each of a list of tensors, all at one time; returns one handle."""
    return submit("allgather", list(tensors), None, name, process_set, list)


def allgather(tensor, name=None, process_set=global_process_set):
    """The ranks' tensors one after the other, [rows of all ranks, …]; ranks may give unequal numbers of rows.

    As in Horovod, the gradient is this rank's part of the average of the ranks' gradients.
    """
    return _Allgather.apply(name, process_set, tensor)[0]


def grouped_allgather(tensors, name=None, process_set=global_process_set):
    """`allgather` of each of a list of tensors, all at one time."""
    return list(_Allgather.apply(name, process_set, *tensors))


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, name, process_set, *tensors):
        handle = grouped_allgather_async(tensors, name, process_set)
        ctx.process_set, ctx.rows = process_set, [tensor.shape[0] for tensor in tensors]
        return tuple(synchronize(handle))

    @staticmethod
    def backward(ctx, *gradients):
        everybodys = allgather(torch.tensor([ctx.rows]), process_set=ctx.process_set)
        before = everybodys[: ctx.process_set.rank()].sum(0).tolist()
        reduced = grouped_allreduce(gradients, op=Average, process_set=ctx.process_set)
        return (None, None) + tuple(
            gradient.narrow(0, begin, rows) for gradient, begin, rows in zip(reduced, before, ctx.rows)
        )


# broadcast


def broadcast_async(tensor, root_rank, name=None, process_set=global_process_set):
    """Begin to copy the root's tensor into a new one on all ranks; returns a handle. See `broadcast`."""
    return submit("broadcast", [tensor], None, name, process_set, first, root=int(root_rank))


def broadcast_async_(tensor, root_rank, name=None, process_set=global_process_set):
    """Begin to copy the root's tensor into this one on all ranks; returns a handle. See `broadcast`."""
    return submit("broadcast", [tensor], [tensor], name, process_set, first, root=int(root_rank))


broadcast_ = _in_place("broadcast_", broadcast_async_)


def broadcast(tensor, root_rank, name=None, process_set=global_process_set):
    """The root's tensor, on every rank, as a new tensor.

    Args:
        tensor: of one shape and dtype on all ranks. root_rank: a rank of the world, in process sets too.

    As in Horovod, the gradient is the average of the ranks' gradients on the root and zero elsewhere.
    """
    return _Broadcast.apply(tensor, root_rank, name, process_set)


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, root_rank, name, process_set):
        ctx.root, ctx.process_set = root_rank, process_set
        return synchronize(broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx, gradient):
        reduced = allreduce(gradient, op=Average, process_set=ctx.process_set)
        return reduced if rank() == ctx.root else torch.zeros_like(reduced), None, None, None


# alltoall


def alltoall_async(tensor, splits=None, name=None, process_set=global_process_set):
    """Begin an `alltoall`; the handle's result is (tensor, received splits)."""
    job.current()
    like = splits if isinstance(splits, torch.Tensor) else torch.empty(0, dtype=torch.int32)
    rows = tensor.shape[0] if isinstance(tensor, torch.Tensor) and tensor.dim() else 0

    def answer(result):
        return result[0], torch.tensor(result[1], dtype=like.dtype, device=like.device)

    given = whole_splits(splits, rows, len(process_set.ranks))
    return submit("alltoall", [tensor], None, name, process_set, answer, splits=given)


def alltoall(tensor, splits=None, name=None, process_set=global_process_set):
    """Send the i-th part of the rows to the i-th rank, and get one part from each.

    Args:
        splits: rows for each rank, in order (default: equally many, which has to come out even).

    Returns:
        The received rows in the order of ranks; with `splits` also how many came from each (int32).
    """
    output, received = _Alltoall.apply(tensor, splits, name, process_set)
    return output if splits is None else (output, received)


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, splits, name, process_set):
        output, received = synchronize(alltoall_async(tensor, splits, name, process_set))
        ctx.process_set, ctx.rows = process_set, tensor.shape[0]
        ctx.received = received.tolist()  # the tensor is the caller's, who may write to it before backward
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx, gradient, _):
        back = alltoall(gradient, ctx.received, process_set=ctx.process_set)[0]
        if back.shape[0] < ctx.rows:  # rows that the splits left out were not sent
            back = torch.cat([back, back.new_zeros(ctx.rows - back.shape[0], *back.shape[1:])])
        return back, None, None, None


# join, barrier


def join(device=-1):
    """Announce that this rank has no more data; it contributes zeros to the other ranks' sums until all have joined.

    Args:
        device: accepted as in Horovod; zeros are made where they are needed.

    Returns:
        The rank that joined last.
    """
    return job.current().join()


def barrier(process_set=global_process_set):
    """Wait until all ranks of the process set have called this."""
    job.current().barrier(sets.number(process_set))


__all__ = """
    allgather allgather_async allreduce allreduce_ allreduce_async allreduce_async_ alltoall alltoall_async
    barrier broadcast broadcast_ broadcast_async broadcast_async_ grouped_allgather grouped_allgather_async
    grouped_allreduce grouped_allreduce_ grouped_allreduce_async grouped_allreduce_async_ grouped_reducescatter
    grouped_reducescatter_async join poll reducescatter reducescatter_async sparse_allreduce_async synchronize
""".split()

"""allgather, broadcast and alltoall on torch tensors; see `mpi_ops`."""

import torch

from ..core import Average, global_process_set, job, rank
from .handles import are_whole, first, submit, synchronize
from .reductions import allreduce, grouped_allreduce

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


def broadcast_(tensor, root_rank, name=None, process_set=global_process_set):
    """`broadcast` in place."""
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


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
    given = splits.tolist() if hasattr(splits, "tolist") else splits
    if splits is None:
        rows = tensor.shape[0] if isinstance(tensor, torch.Tensor) and tensor.dim() else 0
        each, rest = divmod(rows, len(process_set.ranks))
        given = [each] * len(process_set.ranks) if not rest else f"{rows} rows do not come out even"

    def answer(result):
        return result[0], torch.tensor(result[1], dtype=like.dtype, device=like.device)

    given = list(map(int, given)) if are_whole(given) else given
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
        output, ctx.received = synchronize(alltoall_async(tensor, splits, name, process_set))
        ctx.process_set, ctx.rows = process_set, tensor.shape[0]
        ctx.mark_non_differentiable(ctx.received)
        return output, ctx.received

    @staticmethod
    def backward(ctx, gradient, _):
        back = alltoall(gradient, ctx.received, process_set=ctx.process_set)[0]
        if back.shape[0] < ctx.rows:  # rows that the splits left out were not sent
            back = torch.cat([back, back.new_zeros(ctx.rows - back.shape[0], *back.shape[1:])])
        return back, None, None, None

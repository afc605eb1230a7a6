"""Collectives on NDArrays, by way of NumPy.

Each call waits for its result. Horovod puts the operation into MXNet's queue instead, which orders operations by
their data, so a script sees no difference. `priority` is accepted and has no effect, because tensors are matched by
name. A result has the device and the class (`mx.nd` or `mx.np`) of its input; GPU arrays go through host memory.
"""

import mxnet as mx

from .. import arrays
from ..core import Average, Sum, global_process_set


def to_numpy(tensor):
    """A dense NDArray as a new NumPy array of the same shape and dtype; TypeError for anything else."""
    if not isinstance(tensor, mx.nd.NDArray):
        raise TypeError(f"a collective of helpers.hvd.mxnet takes mx.nd or mx.np arrays, not {type(tensor).__name__}")
    if tensor.stype != "default":
        raise TypeError(f"a {tensor.stype} array cannot be sent; convert it with .tostype('default') first")
    return tensor.asnumpy()


def like(tensor, values):
    """The NumPy array `values` as an array of the class of `tensor`, on its device."""
    module = mx.np if isinstance(tensor, mx.np.ndarray) else mx.nd
    return module.array(values, dtype=values.dtype, ctx=tensor.context)


def put(tensor, result):
    """Copy the array `result` into `tensor`; returns `tensor`."""
    with mx.autograd.pause():  # a rank's own copy is overwritten: nothing to differentiate
        return result.copyto(tensor)


def _op(average):
    return Average if average else Sum


def allreduce(
    tensor, average=True, name=None, priority=0, prescale_factor=1.0, postscale_factor=1.0,
    process_set=global_process_set,
):  # fmt: skip
    """The average (or sum) of `tensor` over the ranks, in a new array of the same shape."""
    return grouped_allreduce([tensor], average, name, priority, prescale_factor, postscale_factor, process_set)[0]


def allreduce_(tensor, *args, **options):
    """`allreduce` in place, with the same arguments; returns `tensor`."""
    return put(tensor, allreduce(tensor, *args, **options))


def grouped_allreduce(
    tensors, average=True, name=None, priority=0, prescale_factor=1.0, postscale_factor=1.0,
    process_set=global_process_set,
):  # fmt: skip
    """The averages (or sums) of a list of tensors, which are reduced as one; new arrays."""
    values = [to_numpy(tensor) for tensor in tensors]
    if not values:
        return []
    scales = prescale_factor, postscale_factor
    results = arrays.grouped_allreduce(values, name, _op(average), *scales, process_set)
    return [like(tensor, result) for tensor, result in zip(tensors, results)]


def grouped_allreduce_(tensors, *args, **options):
    """`grouped_allreduce` in place, with the same arguments; returns `tensors`."""
    for tensor, result in zip(tensors, grouped_allreduce(tensors, *args, **options)):
        put(tensor, result)
    return tensors


def allgather(tensor, name=None, priority=0, process_set=global_process_set):
    """The tensors of all ranks after one another along dimension 0, which may differ in length."""
    return like(tensor, arrays.allgather(to_numpy(tensor), name, process_set))


def broadcast(tensor, root_rank, name=None, priority=0, process_set=global_process_set):
    """A new array with the values that `tensor` has on rank `root_rank`."""
    return like(tensor, arrays.broadcast(to_numpy(tensor), root_rank, name, process_set))


def broadcast_(tensor, *args, **options):
    """`broadcast` in place, with the same arguments; returns `tensor`."""
    return put(tensor, broadcast(tensor, *args, **options))


def alltoall(tensor, splits=None, name=None, priority=0, process_set=global_process_set):
    """Send splits[r] rows of `tensor` to rank r, equally many to each without splits.

    Returns what came from the ranks, in their order; with splits, also how many rows from each (int32).
    """
    values = to_numpy(tensor)
    if splits is None:
        return like(tensor, arrays.alltoall(values, None, name, process_set))
    splits = splits.asnumpy() if isinstance(splits, mx.nd.NDArray) else splits
    received, counts = arrays.alltoall(values, splits, name, process_set)
    return like(tensor, received), mx.nd.array(counts, dtype="int32")


def reducescatter(tensor, average=True, name=None, priority=0, process_set=global_process_set):
    """This rank's rows of the average (or sum); the first ranks get one more where they do not divide."""
    return like(tensor, arrays.reducescatter(to_numpy(tensor), name, _op(average), process_set=process_set))

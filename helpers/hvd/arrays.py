"""The collectives on NumPy arrays, for frameworks other than torch. Arguments as in `helpers.hvd.torch`.

An array is handed to torch without a copy; results are new arrays unless the name ends in `_`.
"""

import numpy
import torch

from .core import Average, global_process_set
from .torch import mpi_ops
from .torch.mpi_ops import barrier, join, poll
from .torch.objects import allgather_object, broadcast_object

_waiting = {}  # handle -> function that makes arrays of tensors


def to_tensor(array):
    """A tensor on the memory of `array` (on a copy where that cannot be written to or walked through).

    Raises:
        TypeError: torch has no such dtype.
    """
    array = numpy.asarray(array)
    if array.dtype.name == "bfloat16":  # of ml_dtypes, which NumPy itself does not know
        return to_tensor(array.view(numpy.int16)).view(torch.bfloat16)
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    return torch.from_numpy(array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("=")))


def to_array(tensor, like=None):
    """The array on the memory of `tensor`; bfloat16 becomes the dtype of `like`."""
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(like.dtype)
    return tensor.numpy()


def _result(handle, like):
    def arrays(result):
        if isinstance(result, list):
            return [to_array(each, one) for each, one in zip(result, like)]
        if isinstance(result, tuple):
            return to_array(result[0], like), result[1].numpy()
        return to_array(result, like)

    _waiting[handle] = arrays
    return handle


def synchronize(handle):
    """Wait for a handle of this module; return its array (alltoall: array and received splits)."""
    arrays = _waiting.pop(handle, None)
    result = mpi_ops.synchronize(handle)
    return None if arrays is None or result is None else arrays(result)


def allreduce_async(array, name=None, op=Average, prescale_factor=1.0, postscale_factor=1.0,
                    process_set=global_process_set):  # fmt: skip
    """Begin an allreduce; returns a handle."""
    array = numpy.asarray(array)
    handle = mpi_ops.allreduce_async(to_tensor(array), None, name, op, prescale_factor, postscale_factor, process_set)
    return _result(handle, array)


def allreduce(array, name=None, op=Average, prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set):
    """The average (or sum, …) of the ranks' arrays."""
    return synchronize(allreduce_async(array, name, op, prescale_factor, postscale_factor, process_set))


def allreduce_(array, name=None, op=Average, prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set):
    """`allreduce` into the array itself, which is returned."""
    tensor = to_tensor(array)
    mpi_ops.allreduce_(tensor, None, name, op, prescale_factor, postscale_factor, process_set)
    return _written(array, tensor)


def grouped_allreduce_async(arrays, name=None, op=Average, prescale_factor=1.0, postscale_factor=1.0,
                            process_set=global_process_set):  # fmt: skip
    """Begin to reduce a list of arrays at one time; returns one handle."""
    arrays = [numpy.asarray(array) for array in arrays]
    handle = mpi_ops.grouped_allreduce_async(
        [to_tensor(array) for array in arrays], None, name, op, prescale_factor, postscale_factor, process_set
    )
    return _result(handle, arrays)


def grouped_allreduce(arrays, name=None, op=Average, prescale_factor=1.0, postscale_factor=1.0,
                      process_set=global_process_set):  # fmt: skip
    """`allreduce` of a list of arrays, all at one time."""
    return synchronize(grouped_allreduce_async(arrays, name, op, prescale_factor, postscale_factor, process_set))


def allgather(array, name=None, process_set=global_process_set):
    """The ranks' arrays one after the other along the first dimension."""
    array = numpy.asarray(array)
    return synchronize(_result(mpi_ops.allgather_async(to_tensor(array), name, process_set), array))


def broadcast(array, root_rank, name=None, process_set=global_process_set):
    """The root's array, on every rank."""
    array = numpy.asarray(array)
    return synchronize(_result(mpi_ops.broadcast_async(to_tensor(array), root_rank, name, process_set), array))


def broadcast_(array, root_rank, name=None, process_set=global_process_set):
    """`broadcast` into the array itself, which is returned."""
    tensor = to_tensor(array)
    mpi_ops.broadcast_(tensor, root_rank, name, process_set)
    return _written(array, tensor)


def alltoall(array, splits=None, name=None, process_set=global_process_set):
    """Rows sent to each rank and received from each; with `splits` (array, received splits)."""
    array = numpy.asarray(array)
    splits = None if splits is None else [int(split) for split in splits]
    output, received = synchronize(_result(mpi_ops.alltoall_async(to_tensor(array), splits, name, process_set), array))
    return output if splits is None else (output, received)


def reducescatter(array, name=None, op=Average, prescale_factor=1.0, postscale_factor=1.0,
                  process_set=global_process_set):  # fmt: skip
    """This rank's rows of the reduced array."""
    array = numpy.asarray(array)
    handle = mpi_ops.reducescatter_async(to_tensor(array), name, op, process_set, prescale_factor, postscale_factor)
    return synchronize(_result(handle, array))


def _written(array, tensor):
    """`array`, holding what `tensor` holds now."""
    result = to_array(tensor, array)
    if not numpy.shares_memory(array, result):
        array[...] = result
    return array


__all__ = [
    "allgather", "allgather_object", "allreduce", "allreduce_", "allreduce_async", "alltoall", "barrier", "broadcast",
    "broadcast_", "broadcast_object", "grouped_allreduce", "grouped_allreduce_async", "join", "poll", "reducescatter",
    "synchronize", "to_array", "to_tensor",
]  # fmt: skip

"""The collectives on NumPy arrays, for frameworks other than torch. Arguments as in `platforms.horovod.torch`.

An array is handed to torch without a copy; results are new arrays unless the name ends in `_`.
"""

import numpy
import torch

from .core import Average
from .core import global_process_set as WORLD
from .torch import mpi_ops
from .torch.functions import allgather_object, broadcast_object  # noqa: F401  (in __all__, as the next line)
from .torch.mpi_ops import barrier, join, poll  # noqa: F401

_likes = {}  # handle -> the given array or arrays, whose dtypes the results get


def to_tensor(array):
    """A tensor on the memory of `array` (of a copy, if the array is read-only or has negative strides).

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


def _begin(operation, given, *arguments):
    """Begin `operation` (of torch) on an array, or on a list of them; returns a handle."""
    if isinstance(given, list) and operation.__name__.startswith("grouped_"):
        given = [numpy.asarray(array) for array in given]
        handle = operation([to_tensor(array) for array in given], *arguments)
    else:
        given = numpy.asarray(given)
        handle = operation(to_tensor(given), *arguments)
    _likes[handle] = given
    return handle


def synchronize(handle):
    """Wait for a handle of this module; return its array (alltoall: array and received splits)."""
    like = _likes.pop(handle, None)
    result = mpi_ops.synchronize(handle)
    if like is None or result is None:
        return None
    if isinstance(result, list):
        return [to_array(each, one) for each, one in zip(result, like)]
    if isinstance(result, tuple):
        return to_array(result[0], like), result[1].numpy()
    return to_array(result, like)


def _into(array, operation, *arguments):
    """Run `operation` (of torch) in place on the memory of `array`, which is returned."""
    tensor = to_tensor(array)
    operation(tensor, *arguments)
    result = to_array(tensor, array)
    if not numpy.shares_memory(array, result):
        array[...] = result
    return array


def allreduce_async(array, name=None, op=Average, prescale_factor=1.0, postscale_factor=1.0, process_set=WORLD):
    """Begin an allreduce; returns a handle."""
    return _begin(mpi_ops.allreduce_async, array, None, name, op, prescale_factor, postscale_factor, process_set)


def allreduce(array, *args, **options):
    """The average (or sum, …) of the ranks' arrays; arguments as of `allreduce_async`."""
    return synchronize(allreduce_async(array, *args, **options))


def allreduce_(array, name=None, op=Average, prescale_factor=1.0, postscale_factor=1.0, process_set=WORLD):
    """`allreduce` into the array itself, which is returned."""
    return _into(array, mpi_ops.allreduce_, None, name, op, prescale_factor, postscale_factor, process_set)


def grouped_allreduce_async(
    arrays, name=None, op=Average, prescale_factor=1.0, postscale_factor=1.0, process_set=WORLD
):
    """Begin to reduce a list of arrays together; returns one handle."""
    scales = prescale_factor, postscale_factor
    return _begin(mpi_ops.grouped_allreduce_async, list(arrays), None, name, op, *scales, process_set)


def grouped_allreduce(arrays, *args, **options):
    """`allreduce` of a list of arrays together."""
    return synchronize(grouped_allreduce_async(arrays, *args, **options))


def allgather(array, name=None, process_set=WORLD):
    """The ranks' arrays concatenated along the first dimension."""
    return synchronize(_begin(mpi_ops.allgather_async, array, name, process_set))


def grouped_allgather(arrays, name=None, process_set=WORLD):
    """`allgather` of a list of arrays together."""
    return synchronize(_begin(mpi_ops.grouped_allgather_async, list(arrays), name, process_set))


def broadcast(array, root_rank, name=None, process_set=WORLD):
    """The root's array, on every rank."""
    return synchronize(_begin(mpi_ops.broadcast_async, array, root_rank, name, process_set))


def broadcast_(array, root_rank, name=None, process_set=WORLD):
    """`broadcast` into the array itself, which is returned."""
    return _into(array, mpi_ops.broadcast_, root_rank, name, process_set)


def alltoall(array, splits=None, name=None, process_set=WORLD):
    """Rows sent to each rank and received from each; with `splits` (array, received splits)."""
    output, received = synchronize(_begin(mpi_ops.alltoall_async, array, splits, name, process_set))
    return output if splits is None else (output, received)


def reducescatter(array, name=None, op=Average, prescale_factor=1.0, postscale_factor=1.0, process_set=WORLD):
    """This rank's rows of the reduced array."""
    scales = prescale_factor, postscale_factor
    return synchronize(_begin(mpi_ops.reducescatter_async, array, name, op, process_set, *scales))


def grouped_reducescatter(arrays, name=None, op=Average, process_set=WORLD, prescale_factor=1.0, postscale_factor=1.0):
    """`reducescatter` of a list of arrays together."""
    scales = prescale_factor, postscale_factor
    return synchronize(_begin(mpi_ops.grouped_reducescatter_async, list(arrays), name, op, process_set, *scales))


__all__ = (
    "allgather allgather_object allreduce allreduce_ allreduce_async alltoall barrier broadcast broadcast_ "
    "broadcast_object grouped_allgather grouped_allreduce grouped_allreduce_async grouped_reducescatter join poll "
    "reducescatter synchronize to_array to_tensor"
).split()

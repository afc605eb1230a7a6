"""The collectives on NumPy arrays, for frameworks other than torch. Arguments as in `platforms.horovod.torch`.

An array is handed to torch without a copy; results are new arrays unless the name ends in `_`.
"""

import numpy
import torch

from .torch import mpi_ops
from .torch.functions import allgather_object, broadcast_object  # noqa: F401  (in __all__, as the next line)
from .torch.mpi_ops import barrier, join  # noqa: F401


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


def _blocking(operation, order, about):
    """The blocking form of `operation` (of torch) on an array, or on a list; after that it takes what `order` says."""
    grouped = operation.__name__.startswith("grouped_")

    def call(given, *args, **options):
        options.update(zip(order.split(), args))
        given = [numpy.asarray(array) for array in (given if grouped else [given])]
        tensors = [to_tensor(array) for array in given]
        result = mpi_ops.synchronize(operation(tensors if grouped else tensors[0], **options))
        if grouped:
            return [to_array(each, like) for each, like in zip(result, given)]
        if isinstance(result, tuple):  # of alltoall
            arrays = to_array(result[0], given[0]), result[1].numpy()
            return arrays[0] if options.get("splits") is None else arrays
        return to_array(result, given[0])

    call.__name__, call.__doc__ = operation.__name__[: -len("_async")], about
    return call


def _in_place(collective):
    def call(array, *args, **options):
        array[...] = collective(array, *args, **options)
        return array

    call.__name__, call.__doc__ = (
        f"{collective.__name__}_",
        f"`{collective.__name__}` into the array, which is returned.",
    )
    return call


NAMED = "name process_set"
REDUCED = "name op prescale_factor postscale_factor process_set"
allreduce = _blocking(mpi_ops.allreduce_async, REDUCED, "The average (or sum, …) of the ranks' arrays.")
grouped_allreduce = _blocking(mpi_ops.grouped_allreduce_async, REDUCED, "`allreduce` of a list of arrays together.")
allgather = _blocking(mpi_ops.allgather_async, NAMED, "The ranks' arrays concatenated along the first dimension.")
grouped_allgather = _blocking(mpi_ops.grouped_allgather_async, NAMED, "`allgather` of a list of arrays together.")
broadcast = _blocking(mpi_ops.broadcast_async, f"root_rank {NAMED}", "The root's array, on every rank.")
alltoall = _blocking(
    mpi_ops.alltoall_async, f"splits {NAMED}", "Rows received from each rank; with `splits` (array, received splits)."
)
reducescatter = _blocking(mpi_ops.reducescatter_async, REDUCED, "This rank's rows of the reduced array.")
grouped_reducescatter = _blocking(
    mpi_ops.grouped_reducescatter_async, REDUCED, "`reducescatter` of a list of arrays together."
)
allreduce_, broadcast_ = _in_place(allreduce), _in_place(broadcast)

__all__ = (
    "allgather allgather_object allreduce allreduce_ alltoall barrier broadcast broadcast_ broadcast_object "
    "grouped_allgather grouped_allreduce grouped_reducescatter join reducescatter to_array to_tensor"
).split()

"""The collectives on NumPy arrays, for frameworks other than torch. Arguments as in `platforms.horovod.torch`.

An array is handed to torch without a copy; results are new arrays unless the name ends in `_`.
"""

import inspect

import numpy
import torch

from .torch import mpi_ops
from .torch.functions import allgather_object, broadcast_object
from .torch.mpi_ops import barrier, join


def to_tensor(array):
    """A tensor on the memory of `array` (of a copy, if the array is read-only or has negative strides)."""
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


def _form(name):
    """A blocking collective on an array, or on a list of them."""
    operation, grouped = getattr(mpi_ops, f"{name.rstrip('_')}_async"), name.startswith("grouped_")
    order = [parameter for parameter in inspect.signature(operation).parameters if parameter != "average"][1:]

    def call(given, *args, **options):
        options.update(zip(order, args))
        arrays = [numpy.asarray(array) for array in (given if grouped else [given])]
        tensors = [to_tensor(array) for array in arrays]
        result = mpi_ops.synchronize(operation(tensors if grouped else tensors[0], **options))
        if isinstance(result, tuple):  # of alltoall
            rows = to_array(result[0], arrays[0])
            return rows if options.get("splits") is None else (rows, result[1].numpy())
        results = [to_array(*each) for each in zip(result if grouped else [result], arrays)]
        if name.endswith("_"):
            given[...] = results[0]
            return given
        return results if grouped else results[0]

    call.__name__, call.__doc__ = name, operation.__doc__
    return call


NAMES = "allgather allreduce allreduce_ alltoall broadcast broadcast_ reducescatter".split()
NAMES += ["grouped_allgather", "grouped_allreduce", "grouped_reducescatter"]
FORMS = {name: _form(name) for name in NAMES}
globals().update(FORMS)
__all__ = [*FORMS, "allgather_object", "barrier", "broadcast_object", "join", "to_array", "to_tensor"]

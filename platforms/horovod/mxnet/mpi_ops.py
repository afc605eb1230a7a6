"""Collectives on NDArrays, by way of NumPy.

Each call waits for its result. Horovod puts the operation into MXNet's queue instead, which orders operations by
their data, so a script sees no difference. `priority` is accepted and has no effect. A result has the device and the
class (`mx.nd` or `mx.np`) of its input; GPU arrays go through host memory.
"""

import mxnet as mx

from .. import arrays
from ..core import Average, reduction
from ..core import global_process_set as WORLD
from ..signature import parameters

REDUCE = "average name priority prescale_factor postscale_factor process_set op"


def to_numpy(tensor):
    """A dense NDArray as a new NumPy array of the same shape and dtype; TypeError for anything else."""
    if not isinstance(tensor, mx.nd.NDArray):
        raise TypeError(
            f"a collective of platforms.horovod.mxnet takes mx.nd or mx.np arrays, not {type(tensor).__name__}"
        )
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


def _grouped(collective, tensors, *arguments):
    values = [to_numpy(tensor) for tensor in tensors]
    results = collective(values, *arguments) if values else []
    return [like(tensor, result) for tensor, result in zip(tensors, results)]


def grouped_allreduce(
    tensors, average=None, name=None, priority=0, prescale_factor=1.0, postscale_factor=1.0, process_set=WORLD, op=None
):
    """The averages of `tensors` over the ranks, or what `op` says, as one operation; new arrays of the same shapes.

    Args:
        average: True for Average, False for Sum (Horovod's older argument).
        op: Average (default), Sum, Min, Max, Product, or Adasum (2^k ranks).

    Raises:
        ValueError: both `average` and `op`. HorovodInternalError: the ranks disagree.
    """
    scales = prescale_factor, postscale_factor
    return _grouped(arrays.grouped_allreduce, tensors, name, reduction(op, average), *scales, process_set)


@parameters(f"tensors {REDUCE}", grouped_allreduce)
def grouped_allreduce_(tensors, **options):
    """`grouped_allreduce` in place; returns `tensors`."""
    for tensor, result in zip(tensors, grouped_allreduce(tensors, **options)):
        put(tensor, result)
    return tensors


@parameters(f"tensor {REDUCE}", grouped_allreduce)
def allreduce(tensor, **options):
    """`grouped_allreduce` of one tensor."""
    return grouped_allreduce([tensor], **options)[0]


@parameters(f"tensor {REDUCE}", grouped_allreduce)
def allreduce_(tensor, **options):
    """`allreduce` in place; returns `tensor`."""
    return put(tensor, allreduce(tensor, **options))


def allgather(tensor, name=None, priority=0, process_set=WORLD):
    """The tensors of all ranks after one another along dimension 0, which may differ in length."""
    return grouped_allgather([tensor], name, priority, process_set)[0]


def grouped_allgather(tensors, name=None, priority=0, process_set=WORLD):
    """`allgather` of each of a list of tensors, all at one time; new arrays."""
    return _grouped(arrays.grouped_allgather, tensors, name, process_set)


def broadcast(tensor, root_rank, name=None, priority=0, process_set=WORLD):
    """A new array with the values that `tensor` has on rank `root_rank`."""
    return like(tensor, arrays.broadcast(to_numpy(tensor), root_rank, name, process_set))


def broadcast_(tensor, root_rank, name=None, priority=0, process_set=WORLD):
    """`broadcast` in place; returns `tensor`."""
    return put(tensor, broadcast(tensor, root_rank, name, priority, process_set))


def alltoall(tensor, splits=None, name=None, priority=0, process_set=WORLD):
    """Send splits[r] rows of `tensor` to rank r, equally many to each without splits.

    Returns what came from the ranks, in their order; with splits, also how many rows from each (int32).

    Raises:
        HorovodInternalError: splits that are no whole numbers (an NDArray of them needs an integer dtype).
    """
    values = to_numpy(tensor)
    if splits is None:
        return like(tensor, arrays.alltoall(values, None, name, process_set))
    splits = splits.asnumpy() if isinstance(splits, mx.nd.NDArray) else splits
    received, counts = arrays.alltoall(values, splits, name, process_set)
    return like(tensor, received), mx.nd.array(counts, dtype="int32")


def grouped_reducescatter(
    tensors, op=Average, name=None, priority=0, process_set=WORLD, prescale_factor=1.0, postscale_factor=1.0
):
    """This rank's rows of the averages (or sums) of `tensors`; the first ranks get one more if they do not divide."""
    scales = prescale_factor, postscale_factor
    return _grouped(arrays.grouped_reducescatter, tensors, name, op, *scales, process_set)


@parameters("tensor op name priority process_set prescale_factor postscale_factor", grouped_reducescatter)
def reducescatter(tensor, **options):
    """`grouped_reducescatter` of one tensor."""
    return grouped_reducescatter([tensor], **options)[0]

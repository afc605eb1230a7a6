"""Collectives on NDArrays, by way of NumPy.

Each call waits for its result. Horovod puts the operation into MXNet's queue instead, which orders operations by
their data, so a script sees no difference. `priority` is accepted and has no effect. A result has the device and the
class (`mx.nd` or `mx.np`) of its input; GPU arrays go through host memory. A name with `_` at its end works in place.
"""

import mxnet as mx

from .. import arrays
from ..core import reduction
from ..signature import SCALES, SET, signed

REDUCE = f"average=None, name=None, priority=0, {SCALES}, {SET}, op=None"
SCATTER = f"op=Average, name=None, priority=0, {SET}, {SCALES}"
PRIORITY = f"name=None, priority=0, {SET}"
COLLECTIVES = {  # name -> its parameters
    "allreduce": f"tensor, {REDUCE}",
    "allreduce_": f"tensor, {REDUCE}",
    "grouped_allreduce": f"tensors, {REDUCE}",
    "grouped_allreduce_": f"tensors, {REDUCE}",
    "allgather": f"tensor, {PRIORITY}",
    "grouped_allgather": f"tensors, {PRIORITY}",
    "broadcast": f"tensor, root_rank, {PRIORITY}",
    "broadcast_": f"tensor, root_rank, {PRIORITY}",
    "alltoall": f"tensor, splits=None, {PRIORITY}",
    "reducescatter": f"tensor, {SCATTER}",
    "grouped_reducescatter": f"tensors, {SCATTER}",
}


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


def _form(name):
    operation, grouped = getattr(arrays, name.rstrip("_")), name.startswith("grouped_")

    @signed(COLLECTIVES[name])
    def form(tensor=None, tensors=(), priority=0, average=None, **given):
        tensors = tensors if grouped else [tensor]
        values = [to_numpy(each) for each in tensors]
        if "op" in given:
            given["op"] = reduction(given["op"], average)
        if isinstance(given.get("splits"), mx.nd.NDArray):
            given["splits"] = given["splits"].asnumpy()
        results = operation(values, **given) if grouped and values else [] if grouped else operation(*values, **given)
        if isinstance(results, tuple):  # of alltoall with splits
            return like(tensor, results[0]), mx.nd.array(results[1], dtype="int32")
        results = [like(*pair) for pair in zip(tensors, results if grouped else [results])]
        if name.endswith("_"):
            with mx.autograd.pause():  # a rank's own copy is overwritten: nothing to differentiate
                for each, result in zip(tensors, results):
                    result.copyto(each)
            results = tensors
        return results if grouped else results[0]

    form.__name__ = form.__qualname__ = name
    form.__doc__ = operation.__doc__
    return form


FORMS = {name: _form(name) for name in COLLECTIVES}
globals().update(FORMS)
__all__ = list(COLLECTIVES)

"""Parameters and Python objects from one rank to all."""

import mxnet as mx
from mxnet.gluon.parameter import DeferredInitializationError, Parameter

from .. import arrays
from .mpi_ops import broadcast_

allgather_object, barrier, broadcast_object = arrays.allgather_object, arrays.barrier, arrays.broadcast_object


def broadcast_parameters(params, root_rank=0, prefix=None):
    """Give all ranks the parameters of rank `root_rank`.

    A gluon parameter whose shape is not known yet is broadcast in the first forward pass, right after it gets its
    values: all ranks have to run that.

    Args:
        params: dict of arrays or gluon Parameters, such as `net.collect_params()` or one of `module.get_params()`.
        prefix: comes before each name.

    Raises:
        ValueError: if params is no dict, or there is neither an array nor a Parameter in it.
    """
    if not isinstance(params, (dict, mx.gluon.ParameterDict)):
        raise ValueError(f"invalid params of type {type(params).__name__}: give a dict of arrays or parameters")
    for key, value in sorted(params.items()):
        name = f"{prefix or ''}{key}"
        if isinstance(value, Parameter):
            _broadcast_parameter(value, root_rank, name)
        elif isinstance(value, mx.nd.NDArray):
            broadcast_(value, root_rank, name)
        else:
            raise ValueError(f"'{key}' is neither an array nor a gluon Parameter but {type(value).__name__}")


def _broadcast_parameter(parameter, root_rank, name):
    try:
        first, *others = parameter.list_data()  # one for each of this rank's devices
    except DeferredInitializationError:
        _broadcast_when_initialized(parameter, root_rank, name)
        return
    broadcast_(first, root_rank, name)
    for other in others:
        first.copyto(other)


def _broadcast_when_initialized(parameter, root_rank, name):
    """MXNet calls _init_impl as soon as the shape is known; it is replaced in this one object, until it was called."""

    def init_and_broadcast(*args, **kwargs):
        del parameter._init_impl
        parameter._init_impl(*args, **kwargs)
        _broadcast_parameter(parameter, root_rank, name)

    parameter._init_impl = init_and_broadcast

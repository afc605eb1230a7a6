"""Parameters and Python objects from one rank to all."""

import mxnet as mx
from mxnet.gluon.parameter import DeferredInitializationError, Parameter

from ..arrays import allgather_object, barrier, broadcast_object  # noqa: F401 - for the package
from .mpi_ops import FORMS


def broadcast_parameters(params, root_rank=0, prefix=None):
    """Give all ranks the parameters of rank `root_rank`; `prefix` comes before each name.

    A gluon parameter whose shape is not known yet is broadcast in the first forward pass, right after it gets its
    values: all ranks have to run that. `params`: dict of arrays or gluon Parameters, such as `net.collect_params()` or
    one of `module.get_params()`; else ValueError.
    """
    if not isinstance(params, (dict, mx.gluon.ParameterDict)):
        raise ValueError(f"invalid params of type {type(params).__name__}: give a dict of arrays or parameters")
    for key, value in sorted(params.items()):
        name = f"{prefix or ''}{key}"
        if isinstance(value, Parameter):
            _broadcast_parameter(value, root_rank, name)
        elif isinstance(value, mx.nd.NDArray):
            FORMS["broadcast_"](value, root_rank, name)
        else:
            raise ValueError(f"'{key}' is neither an array nor a gluon Parameter but {type(value).__name__}")


def _broadcast_parameter(parameter, root_rank, name):
    def init_and_broadcast(*args, **kwargs):
        del parameter._init_impl
        parameter._init_impl(*args, **kwargs)
        _broadcast_parameter(parameter, root_rank, name)

    try:
        first, *others = parameter.list_data()  # one for each of this rank's devices
    except DeferredInitializationError:
        parameter._init_impl = init_and_broadcast  # of this one object; MXNet calls it as soon as the shape is known
        return
    FORMS["broadcast_"](first, root_rank, name)
    for other in others:
        first.copyto(other)

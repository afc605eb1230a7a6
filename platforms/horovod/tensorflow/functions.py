"""State that all ranks need: variables and objects, from one rank or from all."""

import numpy as np
import tensorflow as tf

from .. import arrays
from ..core import global_process_set as WORLD
from .collectives import as_is, call, in_session

__all__ = "allgather_object broadcast_global_variables broadcast_object broadcast_object_fn broadcast_variables".split()
_executing_eagerly = tf.executing_eagerly  # Horovod's tests ask for it


def name_of(variable, i):
    """A name that no two of a list of variables share: the place in the list and, where there is one, the path."""
    try:
        return f"{i}.{getattr(variable, 'path', None) or variable.name}"
    except AttributeError:  # an eager tensor has no name
        return str(i)


@as_is
def broadcast_variables(variables, root_rank, process_set=WORLD, inplace=False):
    """Give all ranks the values that `variables` have on rank `root_rank`, a rank of the whole job.

    Args:
        variables: tf.Variables or Keras's, e.g. `model.weights` and then `optimizer.variables`, once they exist.
        inplace: taken for Horovod's sake; the variables are always assigned to.

    Returns:
        In a graph of TensorFlow 1, the operation that does it.
    """
    variables, assigned = list(variables), []
    names = [f"broadcast_variables.{name_of(variable, i)}" for i, variable in enumerate(variables)]

    def meet(*values):
        return [arrays.broadcast(np.asarray(v), root_rank, name, process_set) for v, name in zip(values, names)]

    old = [tf.convert_to_tensor(variable) for variable in variables]
    new = call(meet, old, [value.dtype for value in old]) if variables else []
    for variable, value, before in zip(variables, new, old):
        value.set_shape(before.shape)
        assigned.append(variable.assign(value))
    return tf.group(*assigned) if in_session() else None


def broadcast_object(obj, root_rank=0, session=None, name=None, process_set=WORLD):
    """The object (anything that pickles) of rank `root_rank` on every rank."""
    return arrays.broadcast_object(obj, root_rank, name=name, process_set=process_set)


def broadcast_object_fn(root_rank=0, session=None, name=None, process_set=WORLD):
    """A function that calls `broadcast_object` with these arguments."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(obj, session=None, name=None, process_set=WORLD):
    """The objects of all ranks, a list in the order of ranks."""
    return arrays.allgather_object(obj, name=name, process_set=process_set)


def broadcast_global_variables(root_rank):
    """In a graph of TensorFlow 1: the operation that gives all ranks the global variables of rank `root_rank`."""
    if in_session():
        return broadcast_variables(tf.compat.v1.global_variables(), root_rank)
    raise RuntimeError(
        "hvd.broadcast_global_variables() does not support eager execution: TensorFlow 2 keeps no list of all "
        "variables. Use hvd.broadcast_variables(model.weights, root_rank), then the same for optimizer.variables; "
        "with model.fit, hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank) does it"
    )

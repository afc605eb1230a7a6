"""Horovod's API for TensorFlow 2 (`import platforms.horovod.tensorflow as hvd`), without Horovod.

In an environment with TensorFlow (`make keras`):

    import platforms.horovod.tensorflow as hvd

    hvd.init()
    with tf.GradientTape() as tape:
        loss = loss_of(model(images))
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(optimizer.variables, root_rank=0)

Also in graphs of TensorFlow 1: `hvd.DistributedOptimizer` takes optimizers of tf.compat.v1.train, and
`hvd.BroadcastGlobalVariablesHook(0)` is a hook for MonitoredTrainingSession. Not offered: elastic training, and XLA
(jit_compile=True).
"""

# ruff: noqa: F401, F403

import numpy as np

try:
    import tensorflow as tf
except ImportError as error:
    raise ImportError(
        f"platforms.horovod.tensorflow and platforms.horovod.keras need TensorFlow, which cannot be imported "
        f"here ({error}). "
        "`make keras` creates .venv-keras, an environment with it; start the script with .venv-keras/bin/python"
    ) from error

# isort: split
from .. import core
from ..core import *
from ..core import global_process_set
from ..signature import parameters
from . import elastic, graph
from . import functions as util  # Horovod's tests ask `hvd.util._executing_eagerly()`
from .collectives import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    reducescatter,
)
from .compression import Compression
from .functions import (
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from .gradients import DistributedGradientTape, GradientReducer, PartialDistributedGradientTape
from .graph import BroadcastGlobalVariablesHook

_executing_eagerly = util._executing_eagerly


def broadcast_(variables, root_rank, name=None, process_set=global_process_set):
    """`broadcast_variables`, which returns the new values."""
    broadcast_variables(variables, root_rank, process_set)
    return [tf.convert_to_tensor(variable) for variable in variables]


def _at_run_time(number):
    """A function that gives the int32 tensor of what `number()` is when the graph runs."""

    def operation(name=None):
        return tf.ensure_shape(tf.numpy_function(lambda: np.int32(number()), [], tf.int32), ())

    operation.__doc__ = f"`{number.__name__}()` when the graph runs (int32)."
    return operation


rank_op, local_rank_op, local_size_op = map(_at_run_time, (core.rank, core.local_rank, core.local_size))


def size_op(process_set_id=0, name=None):
    """How many ranks the process set of this number has (int32); it is looked up when the graph runs.

    Raises:
        ValueError: there is no such set (in a tf.function TensorFlow makes it an InvalidArgumentError).
    """

    def count():
        sets = core.get_process_set_ids_and_ranks()
        if process_set_id not in sets:
            raise ValueError(
                f"there is no process set {process_set_id} on rank {core.rank()}; there are {sorted(sets)}"
            )
        return len(sets[process_set_id])

    return _at_run_time(count)()


def process_set_included_op(process_set_id=0, name=None):
    """1 if this rank is in the process set of this number, else 0; -1 before init(), -2 for no such set (int32)."""

    def included():
        if not core.is_initialized():
            return -1
        ranks = core.get_process_set_ids_and_ranks().get(process_set_id)
        return -2 if ranks is None else core.rank() in ranks

    return _at_run_time(included)()


@parameters(
    "optimizer name use_locking device_dense device_sparse compression sparse_as_dense backward_passes_per_step op "
    "gradient_predivide_factor average_aggregated_gradients num_groups groups process_set scale_local_gradients",
    GradientReducer,
)
def DistributedOptimizer(
    optimizer,
    name=None,
    use_locking=False,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    backward_passes_per_step=1,
    average_aggregated_gradients=False,
    **options,
):
    """An optimizer that reduces gradients over the ranks: for one of Keras see `optimizer`, of TensorFlow 1 `graph`.

    Args:
        options: those of `gradients.GradientReducer`.

    Raises:
        ValueError: neither, or options that contradict each other.
    """
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        from . import optimizer as of_keras  # imports Keras, as SyncBatchNormalization does

        options.update(backward_passes_per_step=backward_passes_per_step, compression=compression)
        options.update(average_aggregated_gradients=average_aggregated_gradients)
        return of_keras.DistributedOptimizer(optimizer, name, **options)
    reducer = GradientReducer(name or f"Distributed{type(optimizer).__name__}", compression, **options)
    return graph.DistributedOptimizer(
        optimizer, use_locking, reducer, backward_passes_per_step, average_aggregated_gradients
    )


def __getattr__(name):
    if name == "SyncBatchNormalization":  # Keras takes a second to import, and not every script needs it
        from .sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

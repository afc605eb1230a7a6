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

Not offered: elastic training, XLA (jit_compile=True), and TensorFlow 1 (sessions, hooks, tf.compat.v1 optimizers).
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
from .. import keras_backend
from ..core import *
from ..core import (
    Average,
    get_process_set_ids_and_ranks,
    global_process_set,
    is_initialized,
    local_rank,
    local_size,
    rank,
)
from . import elastic
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
from .gradients import DistributedGradientTape, PartialDistributedGradientTape


def broadcast_(variables, root_rank, name=None, process_set=global_process_set):
    """`broadcast_variables`, which returns the new values."""
    broadcast_variables(variables, root_rank, process_set)
    return [tf.convert_to_tensor(variable) for variable in variables]


def _at_run_time(number):
    """The int32 tensor of what `number()` gives when the graph runs."""
    return tf.ensure_shape(tf.numpy_function(lambda: np.int32(number()), [], tf.int32), ())


def size_op(process_set_id=0, name=None):
    """How many ranks the process set of this number has (int32); it is looked up when the graph runs.

    Raises:
        ValueError: there is no such set (in a tf.function TensorFlow makes it an InvalidArgumentError).
    """

    def count():
        sets = get_process_set_ids_and_ranks()
        if process_set_id not in sets:
            raise ValueError(f"there is no process set {process_set_id} on rank {rank()}; there are {sorted(sets)}")
        return len(sets[process_set_id])

    return _at_run_time(count)


def process_set_included_op(process_set_id=0, name=None):
    """1 if this rank is in the process set of this number, else 0; -1 before init(), -2 for no such set (int32)."""

    def included():
        if not is_initialized():
            return -1
        ranks = get_process_set_ids_and_ranks().get(process_set_id)
        return -2 if ranks is None else rank() in ranks

    return _at_run_time(included)


def local_size_op(name=None):
    """`local_size()` when the graph runs (int32)."""
    return _at_run_time(local_size)


def rank_op(name=None):
    """`rank()` when the graph runs (int32)."""
    return _at_run_time(rank)


def local_rank_op(name=None):
    """`local_rank()` when the graph runs (int32)."""
    return _at_run_time(local_rank)


def DistributedOptimizer(
    optimizer,
    name=None,
    use_locking=False,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    sparse_as_dense=False,
    backward_passes_per_step=1,
    op=Average,
    gradient_predivide_factor=1.0,
    average_aggregated_gradients=False,
    num_groups=0,
    groups=None,
    process_set=global_process_set,
    scale_local_gradients=True,
):
    """A Keras optimizer that reduces gradients over the ranks: `platforms.horovod.keras.DistributedOptimizer`.

    Raises:
        ValueError: a TensorFlow 1 optimizer, or none at all.
    """
    keras_backend.check()
    from .optimizer import DistributedOptimizer  # imports Keras, as SyncBatchNormalization does

    return DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )


def __getattr__(name):
    if name == "SyncBatchNormalization":  # Keras takes a second to import, and not every script needs it
        from .sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Horovod's API for TensorFlow 2 (`import helpers.hvd.tensorflow as hvd`), without Horovod.

In an environment with TensorFlow (`make keras`):

    import helpers.hvd.tensorflow as hvd

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

try:
    import tensorflow as tf
except ImportError as error:
    raise ImportError(
        f"helpers.hvd.tensorflow and helpers.hvd.keras need TensorFlow, which cannot be imported here ({error}). "
        "`make keras` creates .venv-keras, an environment with it; start the script with .venv-keras/bin/python"
    ) from error

# isort: split
from .. import keras_backend
from ..core import *
from ..core import Average, global_process_set, local_rank, local_size, rank, size
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


def _as_tensor(number):
    def operation(process_set_id=0, name=None):
        return tf.constant(number(), tf.int32)

    operation.__doc__ = f"`{number.__name__}()`, as a tensor."
    return operation


size_op, local_size_op, rank_op, local_rank_op = map(_as_tensor, (size, local_size, rank, local_rank))


def DistributedOptimizer(
    optimizer, name=None, use_locking=False, device_dense="", device_sparse="", compression=Compression.none,
    sparse_as_dense=False, backward_passes_per_step=1, op=Average, **options,
):  # fmt: skip
    """A Keras optimizer that reduces gradients over the ranks: `helpers.hvd.keras.DistributedOptimizer`.

    Args:
        options: the other arguments of that one.

    Raises:
        ValueError: a TensorFlow 1 optimizer, or none at all.
    """
    keras_backend.check()
    from .optimizer import DistributedOptimizer  # imports Keras, as SyncBatchNormalization does

    return DistributedOptimizer(
        optimizer, name, compression=compression, sparse_as_dense=sparse_as_dense, op=op,
        backward_passes_per_step=backward_passes_per_step, **options,
    )  # fmt: skip


def __getattr__(name):
    if name == "SyncBatchNormalization":  # Keras takes a second to import, and not every script needs it
        from .sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

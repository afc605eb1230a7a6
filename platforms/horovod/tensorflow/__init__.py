"""Horovod's API for TensorFlow 2: `import platforms.horovod.tensorflow as hvd`, in an environment of `make keras`.

Also in graphs of TensorFlow 1: `hvd.DistributedOptimizer` takes optimizers of tf.compat.v1.train, and
`hvd.BroadcastGlobalVariablesHook(0)` is a hook for MonitoredTrainingSession. In a loop with a tape, wrap it by
`hvd.DistributedGradientTape(tape)` after the forward pass; after the first batch call
`hvd.broadcast_variables(model.variables, 0)`, then the same for the optimizer's.
Not offered: elastic training, and XLA (jit_compile=True).
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
from . import functions as util  # Horovod's tests ask `hvd.util._executing_eagerly()`
from . import graph
from .collectives import *
from .collectives import spelled
from .functions import *
from .functions import _executing_eagerly, broadcast_variables
from .gradients import COMPRESSED, GROUPS, DistributedGradientTape, GradientReducer
from .graph import BroadcastGlobalVariablesHook


def broadcast_(variables, root_rank, name=None, process_set=global_process_set):
    """`broadcast_variables`, which returns the new values."""
    broadcast_variables(variables, root_rank, process_set)
    return [tf.convert_to_tensor(variable) for variable in variables]


def _at_run_time(number):
    """A function that gives the int32 tensor of what `number()` is when the graph runs."""
    return lambda name=None: tf.ensure_shape(tf.numpy_function(lambda: np.int32(number()), [], tf.int32), ())


rank_op, local_rank_op, local_size_op = map(_at_run_time, (core.rank, core.local_rank, core.local_size))


def size_op(process_set_id=0, name=None):
    """How many ranks the process set of this number has (int32) when the graph runs; ValueError where there is none."""

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


@spelled(
    f"optimizer, name=None, use_locking=False, {COMPRESSED}, backward_passes_per_step=1, op=Average, "
    f"gradient_predivide_factor=1.0, average_aggregated_gradients=False, {GROUPS}, scale_local_gradients=True"
)
def DistributedOptimizer(optimizer, name, use_locking, **options):
    """An optimizer that reduces gradients over the ranks: for one of Keras see `optimizer`, of TensorFlow 1 `graph`."""
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return graph.DistributedOptimizer(optimizer, name, use_locking, **options)
    from . import optimizer as of_keras  # imports Keras, as SyncBatchNormalization does

    return of_keras.DistributedOptimizer(optimizer, name, **options)


def __getattr__(name):
    if name == "SyncBatchNormalization":  # Keras takes a second to import, and not every script needs it
        from .sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Horovod's API for Keras on TensorFlow: `import platforms.horovod.keras as hvd`, in an environment of `make keras`.

    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.001 * hvd.size()))
    model.compile(optimizer, loss)
    model.fit(this_ranks_data, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

Models and optimizers of tf_keras (Keras 2) are taken, too. Not offered: elastic training and XLA (jit_compile=True).
"""

# ruff: noqa: F401, F403

from .. import keras_backend as _backend

try:
    _backend.check()  # before TensorFlow is imported, which fails next to torch's compiler
except ModuleNotFoundError:
    from .. import tensorflow  # its error says what to do

    raise

# isort: split
from .. import tensorflow as _tensorflow
from ..core import *
from ..core import Average
from ..signature import SCALES
from ..tensorflow import Compression, barrier, broadcast_variables, join
from ..tensorflow.functions import *
from ..tensorflow.optimizer import DistributedOptimizer, load_model
from . import callbacks


@_tensorflow.spelled(f"value, name=None, average=None, {SCALES}, op=None, compression=none")
def allreduce(value, **options):
    """Reduce a value (a number, an array, a tensor) over the ranks; a tensor."""
    return _tensorflow.allreduce(value, **options)


def allgather(value, name=None):
    """The values of all ranks, concatenated along the first dimension; a tensor."""
    return _tensorflow.allgather(value, name)


def broadcast(value, root_rank, name=None):
    """The value of rank `root_rank` on every rank; a tensor."""
    return _tensorflow.broadcast(value, root_rank, name)


def reducescatter(value, name=None, op=Average):
    """This rank's rows of the reduced value; a tensor."""
    return _tensorflow.reducescatter(value, op=op, name=name)

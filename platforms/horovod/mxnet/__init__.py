"""Horovod's API for MXNet 1.x, and a key-value store `dist_sync_hvd`: `import platforms.horovod.mxnet as hvd`.

Names, signatures and defaults are those of horovod.mxnet 0.28.1; `barrier` comes in addition. One process for each
device. Needs the environment of `make mxnet` (Python 3.8, the last that MXNet 1.9.1 and a torch with gloo share).
"""

# ruff: noqa: F401, F403

from ..core import *
from .functions import allgather_object, barrier, broadcast_object, broadcast_parameters
from .kvstore import KVStore, create
from .mpi_ops import *
from .optimizer import Compression, DistributedOptimizer, DistributedTrainer
from .sync_batch_norm import PerseusSyncBatchNorm

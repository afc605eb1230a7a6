"""Horovod's API for PyTorch: `import helpers.hvd.torch as hvd` instead of `import horovod.torch as hvd`."""

from ..core import *  # noqa: F403
from . import elastic  # noqa: F401
from .compression import Compression  # noqa: F401
from .functions import (
    allgather_object,
    broadcast_object,
    broadcast_object_fn,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from .mpi_ops import *  # noqa: F403
from .optimizer import DistributedOptimizer  # noqa: F401
from .sync_batch_norm import SyncBatchNorm  # noqa: F401

"""Horovod's API for PyTorch: `import platforms.horovod.torch as hvd` instead of `import horovod.torch as hvd`.

mpi_ops          the collectives, with gradients
handles          submitting one to the engine, waiting for it, refusing what is wrong with it
functions        broadcasting parameters, optimizer states and objects
optimizer        DistributedOptimizer; reducer averages its gradients while backward runs
compression, sync_batch_norm, elastic
"""

from ..core import *  # noqa: F403
from . import elastic  # noqa: F401
from .compression import Compression  # noqa: F401
from .functions import *  # noqa: F403
from .mpi_ops import *  # noqa: F403
from .optimizer import DistributedOptimizer  # noqa: F401
from .sync_batch_norm import SyncBatchNorm  # noqa: F401

"""Horovod's API for MXNet 1.x, and a key-value store `dist_sync_hvd`: `import helpers.hvd.mxnet as hvd`.

Names, signatures and defaults are those of https://horovod.readthedocs.io/en/stable/mxnet.html and
.../api.html#module-horovod.mxnet; `reducescatter` and `barrier` come in addition. One process for each device.
Needs the environment of `make mxnet` (Python 3.8, the last that MXNet 1.9.1 and a torch with gloo share).
"""

from ..core import (
    ProcessSet,
    add_process_set,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from .compression import Compression
from .functions import allgather_object, barrier, broadcast_object, broadcast_parameters
from .kvstore import KVStore
from .mpi_ops import (
    allgather,
    allreduce,
    allreduce_,
    alltoall,
    broadcast,
    broadcast_,
    grouped_allreduce,
    grouped_allreduce_,
    reducescatter,
)
from .optimizer import DistributedOptimizer, DistributedTrainer

__all__ = [
    "Compression", "DistributedOptimizer", "DistributedTrainer", "KVStore", "ProcessSet", "add_process_set",
    "allgather", "allgather_object", "allreduce", "allreduce_", "alltoall", "barrier", "broadcast", "broadcast_",
    "broadcast_object", "broadcast_parameters", "ccl_built", "cross_rank", "cross_size", "cuda_built", "ddl_built",
    "global_process_set", "gloo_built", "gloo_enabled", "grouped_allreduce", "grouped_allreduce_", "init",
    "is_homogeneous", "is_initialized", "local_rank", "local_size", "mpi_built", "mpi_enabled",
    "mpi_threads_supported", "nccl_built", "rank", "reducescatter", "remove_process_set", "rocm_built", "shutdown",
    "size", "start_timeline", "stop_timeline",
]  # fmt: skip

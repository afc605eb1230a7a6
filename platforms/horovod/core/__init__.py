"""What is under all spellings of the API: collectives in program order, compared before they run, on torch.distributed.

Importing it imports no framework. A binding (see `arrays`) asks `job.current()` for a Lane of a process set and submits
an Entry; all ranks of a set have to submit the same requests in the same order. Who runs operations at the same time,
as TensorFlow does, has to force that order, or reduce everything in one call.

lane       the order, the rounds, join           requests   what a rank asks for, and whether the ranks agree
job        start and end, lanes, process sets    watch      ranks that are lost or stand still
place      launcher, store, processes            sets, errors, timeline
"""

# ruff: noqa: F401 - the names are for others

import enum
import warnings

from . import job, place, sets
from .errors import CollectiveError, HorovodInternalError, HostsUpdatedInterrupt, NotInitialized, RankLost
from .job import is_initialized, reset
from .requests import Entry
from .sets import ProcessSet, add_process_set, get_process_set_ids_and_ranks, global_process_set, remove_process_set


class ReduceOp(enum.IntEnum):
    """How the tensors of the ranks are reduced to one; the numbers are Horovod's."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5


Average, Sum, Adasum, Min, Max, Product = ReduceOp


def reduction(op, average):
    """The ReduceOp that `op` and the older argument `average` ask for; ValueError when both do."""
    if average is not None:
        if op is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        warnings.warn("average= is deprecated; use op=hvd.Average or op=hvd.Sum", DeprecationWarning, stacklevel=4)
        op = Average if average else Sum
    if op is None:
        return Average
    return op if type(op) is ReduceOp else ReduceOp(op)  # a call of an Enum is slow


def init(comm=None, process_sets=None):
    """Meet the other ranks; a second call does nothing. RankLost where not all came in time, which names the missing.

    Args:
        comm: the ranks that meet (default: all); any other rank becomes a world of one.
        process_sets: ProcessSets to register at once, or "dynamic" (they can be added later in any case).
    """
    if not job.is_initialized():
        job.start(comm)
        sets.register(process_sets)


def shutdown():
    """Leave the job. Collectives that other ranks want to run with this one fail there. `init()` may follow."""
    job.stop()
    sets.forget()


def _function(name, about, get):
    get.__name__ = get.__qualname__ = name
    get.__doc__ = about
    return get


def _of_job(name, about, attribute=None):
    return _function(name, about, lambda: getattr(job.current(), attribute or name))


rank = _of_job("rank", "This process's number among all, from 0.")
size = _of_job("size", "How many processes there are.")
local_rank = _of_job("local_rank", "This process's number on its host; the number of its device.")
local_size = _of_job("local_size", "How many processes run on this host.")
cross_rank = _of_job("cross_rank", "The number of this host among those that have a process with this local rank.")
cross_size = _of_job("cross_size", "How many hosts have a process with this local rank.")
is_homogeneous = _of_job("is_homogeneous", "Whether all hosts run equally many processes.", "homogeneous")


def start_timeline(file_path, mark_cycles=False):
    """Record the collectives of rank 0 to a file for chrome://tracing; as in Horovod, other ranks write nothing.

    `mark_cycles`: also mark when a round begins (every HOROVOD_CYCLE_TIME or sooner).
    """
    if rank() == 0:
        job.current().timeline.start(file_path, mark_cycles)


def stop_timeline():
    """Finish the file of `start_timeline`."""
    job.current().timeline.stop()


gloo_built = gloo_enabled = _function("gloo_built", "Whether gloo moves the data of CPU tensors: always.", lambda: True)
mpi_built = _function("mpi_built", "Whether MPI or the like moves data: never; mpirun starts ranks.", lambda: False)
mpi_enabled = ddl_built = ccl_built = mpi_built


def mpi_threads_supported():
    """Whether MPI may be used from several threads: always False, since MPI is not in use here."""
    return job.current() is None


def nccl_built():
    """NCCL's version as one number (2.21.5 is 22105) if torch has it for CUDA tensors, else 0."""
    from .. import collectives

    return collectives.nccl_version()


def _built_for(what):
    from torch import version

    return bool(getattr(version, what, None))


cuda_built = _function("cuda_built", "Whether torch was built for CUDA.", lambda: _built_for("cuda"))
rocm_built = _function("rocm_built", "Whether torch was built for ROCm.", lambda: _built_for("hip"))

__all__ = """
    Adasum Average CollectiveError Entry HorovodInternalError HostsUpdatedInterrupt Max Min NotInitialized
    ProcessSet Product RankLost ReduceOp Sum add_process_set ccl_built cross_rank cross_size cuda_built ddl_built
    get_process_set_ids_and_ranks global_process_set gloo_built gloo_enabled init is_homogeneous is_initialized
    local_rank local_size mpi_built mpi_enabled mpi_threads_supported nccl_built rank remove_process_set reset
    rocm_built shutdown size start_timeline stop_timeline
""".split()

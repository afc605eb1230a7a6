"""What is under all spellings of the API: collectives in program order, compared before they run, on torch.distributed.

Importing it imports no framework. What bindings of frameworks use (see `arrays`, which does it for NumPy arrays):

    init, shutdown, rank, size, …      process sets, ReduceOp, reduction(op, average)
    job.current()                      the Job; NotInitialized before init()
    job.current().name(kind, number)   a name for a collective without one, counted alike on all ranks
    sets.number(process_set)           its number; ValueError where this rank is not in it
    job.current().lanes[number]        the Lane: submit(Entry(request, inputs, outputs)), wait(entry), refuse(request)
    job.current().barrier(number), .join()     a barrier is in no order with the collectives
    CollectiveError                    ranks disagree, all raise it, and the job goes on
    RankLost                           a rank died, left, never came, or stands still

All ranks of a process set have to submit the same requests in the same order; who may run operations at the same time,
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
    """Meet the other ranks. A second call does nothing.

    Args:
        comm: the ranks that meet (default: all); any other rank becomes a world of one.
        process_sets: ProcessSets to register at once, or "dynamic" (they can be added later in any case).

    Raises:
        RankLost: not all ranks came in time; the text names the missing ones.
    """
    if job.is_initialized():
        return
    job.start(comm)
    sets.register(process_sets)


def shutdown():
    """Leave the job. Collectives that other ranks want to run with this one fail there. `init()` may follow."""
    job.stop()
    sets.forget()


def rank():
    """This process's number among all, from 0."""
    return job.current().rank


def size():
    """How many processes there are."""
    return job.current().size


def local_rank():
    """This process's number on its host; the number of its device."""
    return job.current().local_rank


def local_size():
    """How many processes run on this host."""
    return job.current().local_size


def cross_rank():
    """The number of this host among those that have a process with this local rank."""
    return job.current().cross_rank


def cross_size():
    """How many hosts have a process with this local rank."""
    return job.current().cross_size


def is_homogeneous():
    """Whether all hosts run equally many processes."""
    return job.current().homogeneous


def start_timeline(file_path, mark_cycles=False):
    """Record the collectives of rank 0 to a file for chrome://tracing; as in Horovod, other ranks write nothing.

    Args:
        mark_cycles: also mark when a round begins (every HOROVOD_CYCLE_TIME or sooner).
    """
    here = job.current()
    if here.rank == 0:
        here.timeline.start(file_path, mark_cycles)


def stop_timeline():
    """Finish the file of `start_timeline`."""
    job.current().timeline.stop()


def gloo_built():
    """Whether gloo is there and moves the data of CPU tensors: always."""
    return True


gloo_enabled = gloo_built


def mpi_built():
    """Whether MPI moves data: never; mpirun starts processes, gloo connects them."""
    return False


mpi_enabled = ddl_built = ccl_built = mpi_built


def mpi_threads_supported():
    """Whether MPI may be used from several threads: always False, since MPI is not in use here."""
    job.current()
    return False


def nccl_built():
    """NCCL's version as one number (2.21.5 is 22105) if torch has it for CUDA tensors, else 0."""
    from .. import collectives

    return collectives.nccl_version()


def cuda_built():
    """Whether torch was built for CUDA."""
    return _built_for("cuda")


def rocm_built():
    """Whether torch was built for ROCm."""
    return _built_for("hip")


def _built_for(what):
    from torch import version

    return bool(getattr(version, what, None))


__all__ = """
    Adasum Average CollectiveError Entry HorovodInternalError HostsUpdatedInterrupt Max Min NotInitialized
    ProcessSet Product RankLost ReduceOp Sum add_process_set ccl_built cross_rank cross_size cuda_built ddl_built
    get_process_set_ids_and_ranks global_process_set gloo_built gloo_enabled init is_homogeneous is_initialized
    local_rank local_size mpi_built mpi_enabled mpi_threads_supported nccl_built rank remove_process_set reset
    rocm_built shutdown size start_timeline stop_timeline
""".split()

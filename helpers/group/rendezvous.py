"""How the ranks of mpirun (Open MPI 4) and srun find each other without MASTER_ADDR: a store that all of them reach.

Rank 0 serves the store at a port derived from the job's name: on loopback if all ranks run on one host, else at the
address of mpirun itself, which every rank knows. For that rank 0 has to run where mpirun does, as it does when mpirun
is started on the first host of the hostfile. Slurm runs its first task on the first host of its list. The store
answers with the job's name, so that nobody joins another job's.
"""

import hashlib
import itertools
import os
import re
import socket
import time
from datetime import timedelta
from pathlib import Path

from .. import releases
from ..launcher import context

INSTEAD = "pass the first host's name to all ranks, mpirun -x MASTER_ADDR=… -x MASTER_PORT=29500"
LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
LOOPBACK = "127.0.0.1"
PATIENCE = 60  # s until rank 0 answers
_groups = itertools.count()  # a second group must not read what the first wrote
_stores = []  # the one of this process's job, which lives as long as the process


def store(rank, size):
    """A store for the next process group of this job; every rank has to call it equally often.

    Raises:
        ValueError: ranks of mpirun are on several hosts, and the first is not where mpirun runs.
        TimeoutError: rank 0 did not come.
    """
    from torch.distributed import HashStore, PrefixStore

    number = next(_groups)
    if size == 1:
        return HashStore()
    if not _stores:
        find_job = _slurm_job if is_task() else _job_here if local_size(size) == size else mpirun_job
        name, addresses, port = find_job()
        if rank == 0 and is_task():
            addresses = ["0.0.0.0"]  # the others may know this host by another address than its own name gives here
        _stores.append(_serve(name, addresses, port) if rank == 0 else _find(name, addresses, port))
    return PrefixStore(f"group{number}", _stores[0])


def local_size(size):
    """How many of the `size` ranks run on this host, as far as the launcher says."""
    if is_task():
        counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", os.environ["SLURM_STEP_TASKS_PER_NODE"])  # such as 2(x3),1
        return [int(n) for n, times in counts for _ in range(int(times or 1))][int(os.environ["SLURM_NODEID"])]
    return next((int(os.environ[name]) for name in LOCAL_SIZES if name in os.environ), size)


def is_task() -> bool:
    """Whether this process is one of several that srun started, and no other launcher in it did.

    The kernel, shell or batch script of an allocation has some of Slurm's variables, too, but is alone in its step.
    """
    others = {"RANK", "OMPI_COMM_WORLD_RANK"} & os.environ.keys()
    alone = os.environ.get("SLURM_STEP_NUM_TASKS", "1") == "1" or "SLURM_PROCID" not in os.environ
    return not (others or alone or context.in_notebook())


def started_ticks(process):
    """When a process started, in clock ticks since the system did; None where there is no /proc (macOS)."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError):
        return None


def mpirun_job():
    """(name of this mpirun's job, addresses of mpirun, port derived from the name).

    Raises:
        ValueError: Open MPI does not say where mpirun is.
    """
    uri = os.environ.get("OMPI_MCA_orte_hnp_uri", "")
    found = re.search(r"tcp://([0-9.,]+):\d+", uri)
    if not found:
        raise ValueError(f"the ranks are on several hosts, and this Open MPI does not say where it is: {INSTEAD}")
    return _job(f"{os.environ.get('PMIX_NAMESPACE')} {uri}", found[1].split(","))


def _job_here():
    """The same for ranks that one process has started on this host."""
    return _job(f"{os.getuid()} {os.getppid()} {started_ticks(os.getppid())}", [LOOPBACK])


def _slurm_job():
    """The same for the tasks of one step: the first host of a list such as n[07-12,20],m1."""
    first = re.match(r"(?:[^,[]|\[.*?\])+", os.environ["SLURM_STEP_NODELIST"])[0]
    marks = f"slurm {os.environ['SLURM_JOB_ID']}.{os.environ['SLURM_STEP_ID']}"
    return _job(marks, [re.sub(r"\[(\w+).*?\]", r"\1", first)])


def _job(marks, addresses):
    name = hashlib.sha256(marks.encode()).hexdigest()
    return name, addresses, 20000 + int(name[:8], 16) % 10000  # below the ports that systems give out


def _serve(name, addresses, port):
    for address in addresses:
        try:
            listening = socket.create_server((address, port), backlog=128)
        except OSError as error:
            failure = error  # not an address of this host, or another program uses the port
        else:
            served = releases.serve_store(listening.detach(), port, address)
            served.set("job", name)
            return served
    raise ValueError(f"rank 0 cannot listen where mpirun runs ({', '.join(addresses)}): {failure}. Else {INSTEAD}")


def _find(name, addresses, port):
    from torch.distributed import TCPStore

    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        for address in addresses:
            try:
                socket.create_connection((address, port), 2).close()
                found = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=5))
                if found.get("job").decode() == name:
                    found.set_timeout(timedelta(minutes=5))  # torch's own
                    return found
            except (OSError, RuntimeError):  # not there, not yet, or something else
                time.sleep(0.01)
    raise TimeoutError(
        f"rank 0 did not answer within {PATIENCE} s at {', '.join(addresses)}, port {port}: "
        f"is the port open between the hosts? Else {INSTEAD}"
    )

"""`distributed()`: join the process group of the launcher that started this process, and leave it again.

Launchers are `helpers.launch`, torchrun, mpirun and srun.
"""

import atexit
import itertools
import os
import socket
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from .. import device
from . import rendezvous
from .rendezvous import local_size

PLACES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
)
SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
TIMEOUT = "HELPERS_TIMEOUT"  # seconds that a collective may take, for runs from a command line
standing = None  # the World of a persistent rank, whose group outlives the functions that it runs
_groups = itertools.count()  # those that this process was in
_late = []  # not empty: the last group is still to be left
_left = []  # gloo groups that this process has left


@dataclass(frozen=True)
class Host:
    """One of the machines of a group, and which ranks run on it."""

    name: str
    ranks: tuple


@dataclass(frozen=True)
class World:
    """This process's place among the ranks.

    Attributes:
        rank: its number, from 0. `local_rank` is that within its host.
        size: how many ranks there are, over all hosts.
        device: the torch.device that it computes on.
        backend: what its collectives use, such as "nccl" or "gloo".
        hosts: Hosts (name, ranks), in the order of their first ranks.
    """

    rank: int
    size: int
    local_rank: int
    device: object  # torch.device
    backend: str
    hosts: tuple = ()  # of Host

    @property
    def node_rank(self) -> int:
        """The number of this process's host."""
        return next((number for number, host in enumerate(self.hosts) if self.rank in host.ranks), 0)

    @property
    def is_main(self) -> bool:
        """Whether this rank is the one that prints and saves."""
        return self.rank == 0


@contextmanager
def distributed(kind=None, backend=None, timeout=None):
    """Initialise torch.distributed from the environment, yield the World, always tear it down.

    Works under `helpers.launch`, `torchrun` (RANK, WORLD_SIZE, …), `mpirun` (Open MPI's OMPI_COMM_WORLD_*, no
    MASTER_ADDR needed if mpirun runs on the first host) and `srun` (several tasks of one step). In a process that
    nobody launched it makes a group of one, so that the same function can also be called directly. On
    persistent ranks (`helpers.ranks`) it yields the World of the group that they are in, and stays in it.

    Args:
        kind: device kind (default: the best there is), see `helpers.device`.
        backend: process-group backend (default: the one that goes with the device).
        timeout: seconds that a collective may take (default: HELPERS_TIMEOUT, else torch's, half an hour).

    Raises:
        ValueError: variables of the launcher are missing, or this rank has no device.
        RuntimeError: there is a process group already.
    """
    import torch.distributed as dist

    if standing is not None and dist.is_initialized():
        if kind not in (None, standing.device.type) or backend not in (None, standing.backend):
            raise RuntimeError(
                f"these ranks are in a group over {standing.backend} on {standing.device.type} that stays; for "
                "another, open them with helpers.ranks(n, group=False), or for the CPU with env={'HELPERS_DEVICE': "
                "'cpu'}"
            )
        yield standing
        return
    world, before = join(kind, backend, timeout), threading.enumerate()
    try:
        yield world
    finally:
        left = [one for one in threading.enumerate() if not one.daemon and one not in before]
        if left:  # an asynchronous checkpoint, for example, needs the group: it is left after them
            _late.append(atexit.register(_leave_late))
        elif dist.is_initialized():
            leave()


def join(kind=None, backend=None, timeout=None):
    """Initialise torch.distributed as `distributed` does, and return the World; whoever calls it leaves the group."""
    import torch.distributed as dist

    if _late:
        _leave_late()
    if dist.is_initialized():
        raise RuntimeError("this process is in a process group already; leave it before joining another")
    rank, size, local_rank = place()
    here = device.of_rank(local_rank, kind)
    backend = backend or device.BACKENDS[here.type]
    timeout = timeout or _timeout()
    options = {} if timeout is None else {"timeout": timedelta(seconds=timeout)}
    if "MASTER_ADDR" not in os.environ:
        options["store"] = rendezvous.store(rank, size)
    elif os.environ.get(AGENT_STORE) == "True" and (prefix := _prefix(size)):
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        options["store"] = dist.PrefixStore(prefix, store)
    dist.init_process_group(backend, rank=rank, world_size=size, **options)
    return World(rank, size, local_rank, here, backend, _hosts(size))


def leave():
    """Leave the default process group, but keep gloo's part of it until the process ends.

    gloo's destructor waits for its threads, which look every 10 ms whether they should end (gloo's tcp/loop.cc): 20 ms,
    a fifth of a short launch. And if a DDP model lets go of the group last, it runs with Python's lock held,
    while gloo's thread may want that lock to free a tensor: with torch 2.6 this ended in a deadlock every few runs.
    """
    import torch.distributed as dist

    if dist.get_backend() == "gloo":  # NCCL's teardown is work that ranks do together
        _left.append(dist.group.WORLD)
    dist.destroy_process_group()


def _leave_late():
    import torch.distributed as dist

    if _late and dist.is_initialized():
        leave()
    _late.clear()


@atexit.register
def _end_gloo_threads():
    """Let gloo's threads end while there is an interpreter: after its end torch 2.6 aborts over one that still runs."""
    rank = sys.modules.get("helpers.launcher.rank")
    if _left and not (rank and rank.channel):  # which ends without the interpreter's end
        time.sleep(0.02)  # they look every 10 ms; then none of them holds a tensor that needs Python's lock to be freed
        _left.clear()


def _prefix(size):
    """A prefix for this group's keys in the store that torchrun keeps over restarts and groups, "" if none is needed.

    Without it a rank finds the address of a dead rank there, or of the group before.
    """
    restart, group = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)), next(_groups)
    return f"attempt{restart}-{group}" if group or (restart and local_size(size) == size) else ""


def place():
    """(rank, world_size, local_rank) of this process from the variables of its launcher.

    Raises:
        ValueError: only some of the variables are there.
    """
    for names in PLACES:
        there = [name for name in names if name in os.environ]
        if len(there) == len(names):
            return tuple(int(os.environ[name]) for name in names)
        if there:
            missing = ", ".join(sorted(set(names) - set(there)))
            raise ValueError(f"{', '.join(there)} set but not {missing}: was this process started by a launcher?")
    return tuple(int(os.environ[name]) for name in SLURM) if rendezvous.is_task() else (0, 1, 0)


def _hosts(size):
    """All hosts with their ranks. Ranks on several hosts ask each other, since launchers number them differently."""
    import torch.distributed as dist

    if local_size(size) == size:
        return (Host(socket.gethostname(), tuple(range(size))),)
    everybody = [None] * size
    dist.all_gather_object(everybody, _machine())
    ranks = {}
    for rank, machine in enumerate(everybody):
        ranks.setdefault(machine, []).append(rank)
    return tuple(Host(machine[0], tuple(numbers)) for machine, numbers in ranks.items())


def _machine():
    """Equal on all ranks of one host and on no others; two hosts may have one name."""
    network = Path("/proc/self/ns/net")
    return socket.gethostname(), os.environ.get("GROUP_RANK"), network.exists() and os.readlink(network)


def _timeout():
    text = os.environ.get(TIMEOUT)
    if text and not (text.replace(".", "", 1).isdecimal() and float(text)):
        raise ValueError(f"{TIMEOUT} is {text!r}; it must be a positive number of seconds")
    return float(text) if text else None

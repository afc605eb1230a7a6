"""This process's place in its job, as the launcher says it, and what the system says of processes.

MXNet needs Python 3.8, which cannot import `helpers`; so what `core` and the starter need is here, without it.
"""

import os
import sys
from pathlib import Path

PLACES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
)
LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")


def place():
    """(rank, world_size, local_rank) of this process from the variables of its launcher; a world of one without.

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
    return 0, 1, 0


def local_size(size):
    """How many of the `size` ranks run on this host, as far as the launcher says."""
    return next((int(os.environ[name]) for name in LOCAL_SIZES if name in os.environ), size)


def parent():
    """A name for the process that started this one: its number and start time, which no other process shares."""
    return f"{os.getppid()}-{(_stat(os.getppid()) or [0] * 20)[19]}"


def is_stopped(process) -> bool:
    """Whether a process was stopped by a signal (SIGSTOP) or a debugger; False where the system does not say."""
    return (_stat(process) or [""])[0] in ("T", "t")


def _stat(process):
    """The fields of /proc/<process>/stat from the state on; None where there is no /proc (macOS)."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def several_hosts():
    """`helpers.group.rendezvous`, by which ranks of mpirun on several hosts find each other.

    Raises:
        ValueError: this Python is too old for it.
    """
    if sys.version_info < (3, 10):
        raise ValueError("ranks on several hosts need mpirun -x MASTER_ADDR=… -x MASTER_PORT=…")
    from helpers.group import rendezvous

    return rendezvous

"""`distributed()`: join the process group of whoever started this process, and leave it again."""

import os
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from . import device


@dataclass(frozen=True)
class World:
    """This process's place among the ranks."""

    rank: int
    size: int
    local_rank: int
    device: object  # torch.device
    backend: str

    @property
    def is_main(self) -> bool:
        """Whether this rank is the one that prints and saves."""
        return self.rank == 0


@contextmanager
def distributed(kind=None, backend=None, timeout=None):
    """Initialise torch.distributed from the environment, yield the World, always tear it down.

    Works under `helpers.launch`, `torchrun` (RANK, WORLD_SIZE, …) and `mpirun` (Open MPI's
    OMPI_COMM_WORLD_*, no MASTER_ADDR needed on one host). In a process that nobody launched it
    makes a group of one, so that the same function can also be called directly.

    Args:
        kind: device kind (default: the best there is), see `helpers.device`.
        backend: process-group backend (default: the one that goes with the device).
        timeout: seconds that a collective may take (default: torch's).

    Raises:
        ValueError: variables of the launcher are missing, or this rank has no device.
        RuntimeError: there is a process group already.
    """
    import torch.distributed as dist

    if dist.is_initialized():
        raise RuntimeError("this process is in a process group already; leave it before joining another")
    rank, size, local_rank = place()
    here = device.of_rank(local_rank, kind)
    backend = backend or device.BACKENDS[here.type]
    options = {} if timeout is None else {"timeout": timedelta(seconds=timeout)}
    if size == 1 and "MASTER_ADDR" not in os.environ:
        options["store"] = dist.HashStore()
    elif "MASTER_ADDR" not in os.environ:
        options["store"] = dist.FileStore(_meeting_file(size), size)
    dist.init_process_group(backend, rank=rank, world_size=size, **options)
    try:
        yield World(rank, size, local_rank, here, backend)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        options.clear()  # the last rank to let go of a FileStore removes its file


def place():
    """(rank, world_size, local_rank) of this process from the variables of its launcher.

    Raises:
        ValueError: only some of the variables are there.
    """
    for names in (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ):
        there = [name for name in names if name in os.environ]
        if len(there) == len(names):
            return tuple(int(os.environ[name]) for name in names)
        if there:
            missing = ", ".join(sorted(set(names) - set(there)))
            raise ValueError(f"{', '.join(there)} set but not {missing}: was this process started by a launcher?")
    return 0, 1, 0


def _meeting_file(size):
    """The ranks of one mpirun meet in a file that is named after the mpirun that started them all.

    The parent's process id and start time name a process for good; a port would have to be guessed.
    """
    if int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", size)) != size:
        raise ValueError(
            "the ranks are on several hosts: pass the first host's name to all of them, "
            "mpirun -x MASTER_ADDR=… -x MASTER_PORT=29500"
        )
    parent = os.getppid()
    started = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    return str(Path(tempfile.gettempdir(), f"helpers-{os.getuid()}-{parent}-{started}"))

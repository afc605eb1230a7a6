"""A store through which the ranks of one launcher find each other where no MASTER_ADDR says how."""

from __future__ import annotations  # helpers.hvd is imported on Python 3.8, too

import itertools
import os
import socket
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from . import mpirun

_meetings = itertools.count()  # a second group must not read what the first wrote


def store(rank, size, patience=300):
    """A store for the next process group of this job; every rank calls it as often as the others do.

    On one host the first rank serves it on loopback, at a port that it writes to a file named after the
    process that started the ranks. The file is gone as soon as all have read it. (torch's FileStore needs no
    port, but may leave its file behind or bring it back when two ranks let go of it at the same time.)

    Args:
        patience: seconds to wait for the other ranks.

    Raises:
        ValueError: ranks of mpirun are on several hosts, and the first is not where mpirun runs.
        TimeoutError: a rank did not come.
    """
    from torch.distributed import HashStore

    if size == 1:
        return HashStore()
    if local_size(size) != size:
        return mpirun.store(rank)
    path = Path(tempfile.gettempdir(), f"helpers-{os.getuid()}-{parent()}-{next(_meetings)}")
    return _serve(path, size, patience) if rank == 0 else _find(path, size, patience)


def _serve(path, size, patience):
    from torch.distributed import TCPStore

    written = path.with_name(f"{path.name}.new")
    # Listening before anybody is told the port, and on loopback only.
    with socket.create_server(("127.0.0.1", 0), backlog=size) as server:
        try:
            written.write_text(str(server.getsockname()[1]))
            written.replace(path)  # nobody reads half a number
            return TCPStore(
                "127.0.0.1", server.getsockname()[1], size, is_master=True, timeout=timedelta(seconds=patience),
                master_listen_fd=server.detach(),
            )  # fmt: skip
        except RuntimeError as error:
            raise TimeoutError(f"not all {size} ranks came within {patience} s: {error}") from None
        finally:
            for file in (written, path):
                file.unlink(missing_ok=True)


def _find(path, size, patience):
    from torch.distributed import TCPStore

    end = time.monotonic() + patience
    while time.monotonic() < end:
        try:
            port = int(path.read_text())
        except FileNotFoundError:
            time.sleep(0.005)
        else:
            return TCPStore("127.0.0.1", port, size, is_master=False, timeout=timedelta(seconds=patience))
    raise TimeoutError(f"rank 0 did not tell within {patience} s, in {path}, where the ranks are to meet")


def local_size(size):
    """How many of the `size` ranks run on this host, as far as the launcher tells."""
    names = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
    return next((int(os.environ[name]) for name in names if name in os.environ), size)


def parent():
    """A name for the process that started this one: its number and when it started name a process for good."""
    number = os.getppid()
    try:
        started = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:  # no /proc on macOS
        started = 0
    return f"{number}-{started}"

"""How the ranks of one launcher find each other where no MASTER_ADDR says it: a store that all of them reach.

On one host the first rank serves the store on loopback and writes its port to a file. Ranks that mpirun (Open MPI 4)
started on several hosts use the address of mpirun itself, which every rank knows: if rank 0 runs on that host, as it
does when mpirun is started on the first host of the hostfile, it serves the store there, at a port derived from the
job's name. The store answers with the job's name, so that nobody joins another job's.
"""

from __future__ import annotations  # platforms.horovod is imported on Python 3.8, too

import hashlib
import itertools
import os
import re
import socket
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from .. import releases
from .language import marked

INSTEAD = marked("pass the first host's name to all ranks, mpirun -x MASTER_ADDR=… -x MASTER_PORT=29500")
LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
_groups = itertools.count()  # a second group must not read what the first wrote
_mpirun = {}  # the store of this process's mpirun job, which lives as long as the process


def store(rank, size, patience=300):
    """A store for the next process group of this job; every rank has to call it equally often.

    Args:
        patience: seconds to wait for the other ranks.

    Raises:
        ValueError: ranks of mpirun are on several hosts, and the first is not where mpirun runs.
        TimeoutError: a rank did not come.
    """
    from torch.distributed import HashStore, PrefixStore

    number = next(_groups)
    if size == 1:
        return HashStore()
    if local_size(size) != size:
        if not _mpirun:
            _mpirun["store"] = _serve_mpirun() if rank == 0 else _find_mpirun()
        return PrefixStore(f"group{number}", _mpirun["store"])
    # torch's FileStore needs no port, but may leave its file behind when two ranks let go of it at the same time.
    path = Path(tempfile.gettempdir(), f"helpers-{os.getuid()}-{parent()}-{number}")
    return _serve(path, size, patience) if rank == 0 else _find(path, size, patience)


def local_size(size):
    """How many of the `size` ranks run on this host, as far as the launcher says."""
    return next((int(os.environ[name]) for name in LOCAL_SIZES if name in os.environ), size)


def parent():
    """A name for the process that started this one: its number and start time, which no other process shares."""
    return f"{os.getppid()}-{started_ticks(os.getppid()) or 0}"


def started_ticks(process):
    """When a process started, in clock ticks since the system did; None where there is no /proc (macOS)."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError):
        return None


# -- one host ------------------------------------------------------------------------------------


def _serve(path, size, patience):
    draft = path.with_name(f"{path.name}.new")
    # The socket listens before anybody knows its port, and on loopback only.
    with socket.create_server(("127.0.0.1", 0), backlog=size) as server:
        port = server.getsockname()[1]
        try:
            draft.write_text(str(port))
            draft.replace(path)  # nobody reads half a number
            return releases.serve_store(server.detach(), port, size, patience)
        except RuntimeError as error:
            raise TimeoutError(f"not all {size} ranks came within {patience} s: {error}") from None
        finally:
            for file in (draft, path):
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
    raise TimeoutError(f"rank 0 did not write its port to {path} within {patience} s")


# -- mpirun on several hosts ---------------------------------------------------------------------


def mpirun_job():
    """(name of this mpirun's job, addresses of mpirun, port derived from the name).

    Raises:
        ValueError: Open MPI does not say where mpirun is.
    """
    uri = os.environ.get("OMPI_MCA_orte_hnp_uri", "")
    found = re.search(r"tcp://([0-9.,]+):\d+", uri)
    if not found:
        raise ValueError(f"the ranks are on several hosts, and this Open MPI does not say where it is: {INSTEAD}")
    name = hashlib.sha256(f"{os.environ.get('PMIX_NAMESPACE')} {uri}".encode()).hexdigest()
    return name, found[1].split(","), 20000 + int(name[:8], 16) % 10000  # below the ports that systems give out


def _serve_mpirun():
    from torch.distributed import TCPStore

    name, addresses, port = mpirun_job()
    own = [address for address in addresses if _is_own(address)]
    if not own:
        raise ValueError(f"rank 0 is not on the host where mpirun runs ({', '.join(addresses)}): {INSTEAD}")
    served = TCPStore(own[0], port, is_master=True, wait_for_workers=False)
    served.set("job", name)
    return served


def _find_mpirun(patience=60):
    from torch.distributed import TCPStore

    name, addresses, port = mpirun_job()
    end = time.monotonic() + patience
    while time.monotonic() < end:
        for address in addresses:
            try:
                socket.create_connection((address, port), 2).close()
                found = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=5))
                if found.get("job").decode() == name:
                    found.set_timeout(timedelta(minutes=5))  # torch's own
                    return found
            except (OSError, RuntimeError):  # not there, not yet, or something else
                time.sleep(0.05)
    raise TimeoutError(
        f"rank 0 did not answer within {patience} s at {', '.join(addresses)}, port {port}: "
        f"is the port open between the hosts? Else {INSTEAD}"
    )


def _is_own(address):
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True

"""How ranks that mpirun started on several hosts find the first of them, without MASTER_ADDR.

Open MPI 4 tells every rank where mpirun itself listens. If the first rank runs on that host too, as it does
when mpirun is started on the first host of the hostfile, it serves a store there, at a port that follows from
the job's name; the others try mpirun's addresses. A store answers with the job's name, so that nobody joins
somebody else's.
"""

import hashlib
import os
import re
import socket
import time

INSTEAD = "pass the first host's name to all ranks, mpirun -x MASTER_ADDR=… -x MASTER_PORT=29500"
_served = {}  # the store of this process's job, which lives as long as the process, and how often it was joined


def store(rank, patience=60):
    """A store that all ranks of this mpirun share, new in each of their calls.

    Args:
        patience: seconds to wait for the first rank.

    Raises:
        ValueError: Open MPI does not say where it is, or the first rank is elsewhere.
        TimeoutError: the first rank did not answer.
    """
    from torch.distributed import PrefixStore

    if not _served:
        _served.update(store=_serve() if rank == 0 else _find(patience), joined=0)
    _served["joined"] += 1
    return PrefixStore(f"group{_served['joined']}", _served["store"])


def job():
    """The name of this mpirun's job, and the addresses and the port that follow from it."""
    uri = os.environ.get("OMPI_MCA_orte_hnp_uri", "")
    told = re.search(r"tcp://([0-9.,]+):\d+", uri)
    if not told:
        raise ValueError(f"the ranks are on several hosts, and this Open MPI does not say where it is: {INSTEAD}")
    name = hashlib.sha256(f"{os.environ.get('PMIX_NAMESPACE')} {uri}".encode()).hexdigest()
    return name, told[1].split(","), 20000 + int(name[:8], 16) % 10000  # below the ports given out by systems


def _serve():
    from torch.distributed import TCPStore

    name, addresses, port = job()
    mine = [address for address in addresses if _is_mine(address)]
    if not mine:
        raise ValueError(f"rank 0 is not on the host where mpirun runs ({', '.join(addresses)}): {INSTEAD}")
    served = TCPStore(mine[0], port, is_master=True, wait_for_workers=False)
    served.set("job", name)
    return served


def _find(patience):
    from datetime import timedelta

    from torch.distributed import TCPStore

    name, addresses, port = job()
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


def _is_mine(address):
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True

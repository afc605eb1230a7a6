"""What the system gives no more of, such as shared memory, processes or ports: which limit it is, and what to do."""

import errno
import os
import re
import resource
import socket
from contextlib import ExitStack
from pathlib import Path

from .errors import Shortage

SHM = "/dev/shm"
PORTS = "/proc/sys/net/ipv4/ip_local_port_range"
A_RANK = 3  # ports: its connection to the store, what it listens at, a connection to another rank


def explained(error):
    """`error` itself, or the Shortage that it amounts to."""
    text, number = str(error), getattr(error, "errno", None)
    if re.search(r"shared memory|/torch_\d+|Bus error", text) or (number == errno.ENOSPC and _free(SHM) < 2**16):
        return Shortage(
            f"{SHM}, through which DataLoader workers send batches, has no room left ({_free(SHM) / 1e6:.1f} MB free): "
            "use num_workers=0 or smaller batches, or make it larger (docker run --shm-size=1g)"
        )
    if number == errno.EAGAIN or re.search("can't start new thread|Resource temporarily unavailable", text):
        return Shortage(
            f"the system allows no more processes and threads ({_most_processes()} at most): use fewer ranks, "
            "threads=1 and num_workers=0, or have the limit raised (ulimit -u, docker run --pids-limit)"
        )
    return error


def check_ports(nprocs):
    """Raises Shortage where there are too few free ports for ranks to meet: torch would try for half an hour."""
    try:
        with ExitStack() as stack:
            for _ in range(min(A_RANK * nprocs, 100)):
                stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return
        ports = "-".join(Path(PORTS).read_text().split()) if os.path.exists(PORTS) else "of the system"
        raise Shortage(
            f"there are no {A_RANK * nprocs} free ports for {nprocs} ranks (range {ports}): end what uses them, "
            "or have the range widened (sysctl net.ipv4.ip_local_port_range)"
        ) from None


def _free(folder):
    found = os.statvfs(folder) if os.path.isdir(folder) else None
    return found.f_bavail * found.f_frsize if found else float("inf")


def _most_processes():
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    limits = [soft] if soft != resource.RLIM_INFINITY else []
    try:
        groups = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
        group = f"pids{groups['pids']}" if "pids" in groups else groups[""]
        limits += [int(Path(f"/sys/fs/cgroup/{group}/pids.max").read_text())]
    except (OSError, ValueError, KeyError):  # no such system, or no limit
        pass
    return min(limits, default="an unknown number")

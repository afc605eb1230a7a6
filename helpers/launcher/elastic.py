"""What torchrun's restarts mean for a run: whether this is one, and what stays the same over all of them."""

import ctypes
import hashlib
import os
import signal
import sys
import time
from pathlib import Path

COUNT = "TORCHELASTIC_RESTART_COUNT"
ROUND = "HELPERS_ROUND"  # of helpers.hosts.torchrun: how often the hosts had met before


def restarts(world) -> int:
    """How often torchrun has started this run's ranks anew; the same on all ranks, all of which must ask.

    An agent that takes the place of a lost one counts from nought, and none counts a restart because a host came,
    so the highest of what the ranks were told is the true one.
    """
    if COUNT not in os.environ:
        return 0
    import torch
    import torch.distributed as dist

    count = torch.tensor(max(int(os.environ[COUNT]), int(os.environ.get(ROUND, 0))), device=world.device)
    dist.all_reduce(count, dist.ReduceOp.MAX)
    return int(count)


def launch():
    """(time.time() at its start, a name of 6 hexadecimal digits) of the torchrun agent that started this process.

    None without torchrun. Both are the same after a restart.
    """
    if COUNT not in os.environ:
        return None
    started = began(os.getppid())
    marks = os.environ.get("TORCHELASTIC_RUN_ID"), os.getppid(), round(started)
    return started, hashlib.sha256(repr(marks).encode()).hexdigest()[:6]


def tie_to_agent():
    """Let this rank end when its agent does, even inside a collective (Linux): nobody else would end it."""
    if COUNT in os.environ and sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def began(process="self"):
    """time.time() at which a process was started, where the system tells; else now."""
    try:
        ticks = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
        up = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError):
        return time.time()
    return time.time() - (up - ticks / os.sysconf("SC_CLK_TCK"))

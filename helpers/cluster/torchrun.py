"""torchrun, which also names the hosts that came when one stays away: `python -m helpers.cluster.torchrun OPTIONS`.

It takes torchrun's options and does what torchrun does, with three differences. When not all hosts come in time
(`--rdzv-conf join_timeout=SECONDS`, 600 by default), torchrun shows a traceback; this names the hosts that came. Each
start of the ranks gets a new store: in the one that torch 2.15 keeps over restarts, an early rank finds the address
of a dead one. And the variable HELPERS_ROUND holds how often the hosts have met before.

After a loss torchrun starts all ranks again: `restarts`, `agent` and `die_with_agent` are what a training run needs to
know and do about that.
"""

import ctypes
import hashlib
import os
import signal
import sys
import time
from pathlib import Path

from ..group.rendezvous import started_ticks

OWN_STORES = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
ROUND = "HELPERS_ROUND"  # read by `restarts`


def main(arguments=None) -> int:
    """Run one agent; returns the exit status."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousTimeoutError

    os.environ.setdefault(OWN_STORES, "1")
    _watch_rendezvous()
    try:
        run.main(arguments)
        return 0
    except (RendezvousTimeoutError, ChildFailedError) as error:
        reason = str(error) or "the other hosts did not come in time"
    except RendezvousConnectionError as error:
        reason = (
            f"no answer at the rendezvous ({error}). Is the command running on that host, with the same --rdzv-id, and "
            "can its port be reached from here?"
        )
    print(f"python -m helpers.cluster.torchrun: {reason}", file=sys.stderr)
    return 1


def _watch_rendezvous():
    """Name the hosts in the error of a rendezvous that timed out; set HELPERS_ROUND after one that succeeded."""
    from torch.distributed.elastic.rendezvous import RendezvousTimeoutError
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous as dynamic

    join = dynamic.DynamicRendezvousHandler.next_rendezvous

    def joined(self):
        try:
            found = join(self)
        except RendezvousTimeoutError:
            raise RendezvousTimeoutError(_who_came(self)) from None
        os.environ[ROUND] = str(self._state_holder.state.round)
        return found

    dynamic.DynamicRendezvousHandler.next_rendezvous = joined


def _who_came(handler):
    state, settings, here = handler._state_holder.state, handler._settings, handler._this_node.addr
    came = sorted({node.addr for node in [*state.participants, *state.wait_list]} | {here})
    return (
        f"{len(came)} of {settings.min_nodes} hosts came within {settings.timeout.join.total_seconds():.0f} s: "
        f"{', '.join(came)} (this is {here}). Start the same command on the others, with the same --rdzv-id and a "
        "--rdzv-endpoint that they can reach; how long is waited for them: --rdzv-conf join_timeout=SECONDS"
    )


def restarts(world) -> int:
    """How often torchrun has started this run's ranks again; the same on all ranks, all of which must call it.

    An agent that replaces a lost one counts from 0, and none counts a restart because a host joined, so the highest
    count of all ranks is the right one.
    """
    if RESTARTS not in os.environ:
        return 0
    import torch
    import torch.distributed as dist

    count = torch.tensor(max(int(os.environ[RESTARTS]), int(os.environ.get(ROUND, 0))), device=world.device)
    dist.all_reduce(count, dist.ReduceOp.MAX)
    return int(count)


def agent():
    """(time.time() at its start, a name of 6 hexadecimal digits) of the torchrun agent that started this process.

    None without torchrun. Both are the same after a restart.
    """
    if RESTARTS not in os.environ:
        return None
    parent = os.getppid()
    started = process_start(parent)  # to the hundredth of a second or so: the next call finds it a little elsewhere
    marks = os.environ.get("TORCHELASTIC_RUN_ID"), parent, started_ticks(parent) or round(started)
    return started, hashlib.sha256(repr(marks).encode()).hexdigest()[:6]


def die_with_agent():
    """Let this rank end when its torchrun agent does, even inside a collective (Linux): nobody else would end it."""
    if RESTARTS in os.environ and sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def process_start(process="self"):
    """time.time() at which a process was started, where the system says so; else now."""
    ticks = started_ticks(process)
    if ticks is None:
        return time.time()
    up = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - (up - ticks / os.sysconf("SC_CLK_TCK"))


if __name__ == "__main__":
    sys.exit(main())

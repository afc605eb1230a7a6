"""This process's place in its job, as the launcher says it, the job's store, and what the system says of processes.

MXNet needs Python 3.8, which cannot import `helpers`; so what `core` and the starter need is here, without it.
"""

import hashlib
import os
import socket
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

OMPI = "OMPI_COMM_WORLD_"
PLACES = ("RANK", "WORLD_SIZE", "LOCAL_RANK"), (OMPI + "RANK", OMPI + "SIZE", OMPI + "LOCAL_RANK")
LOCAL_SIZES = ("LOCAL_WORLD_SIZE", OMPI + "LOCAL_SIZE")
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
MARKS = "PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", RESTARTS
SECONDS = 30  # that a store may take to answer

_stores = []  # the store of this process's launcher; rank 0 may serve it, so it lives as long as the process


def place():
    """(rank, world_size, local_rank) by the launcher's variables, (0, 1, 0) without; ValueError where one misses."""
    for names in PLACES:
        there = [name for name in names if name in os.environ]
        if len(there) == len(names):
            return tuple(int(os.environ[name]) for name in names)
        if there:
            missing = ", ".join(sorted(set(names) - set(there)))
            raise ValueError(f"{', '.join(there)} set but not {missing}: was this process started by a launcher?")
    return 0, 1, 0


def one_host(size):
    """Whether all `size` ranks run on this host, as far as the launcher says."""
    return next((int(os.environ[name]) for name in LOCAL_SIZES if name in os.environ), size) >= size


def restart():
    """How often torchrun has started the ranks again."""
    return int(os.environ.get(RESTARTS, 0))


def store(rank, size):
    """(the store that the launcher's ranks share, whether this process serves it).

    torchrun has one, and in `helpers.launch` rank 0. Else rank 0 serves one at MASTER_ADDR, where a script's own
    default group can use it too, or under mpirun at an address derived from the job's name.
    """
    from torch import distributed as dist

    if size == 1:
        return dist.HashStore(), False
    agent, old = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True", sys.version_info < (3, 10)
    if not _stores and "MASTER_ADDR" in os.environ and (agent or not old or not one_host(size)):
        where, patience = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), timedelta(seconds=SECONDS)
        options = {"is_master": rank == 0 and not agent, "wait_for_workers": False, "multi_tenant": True}
        _stores.append(dist.TCPStore(*where, None, timeout=patience, **options))
    elif not _stores and not old:
        from helpers.group import rendezvous

        _stores.append(rendezvous.store(rank, size))
    elif not _stores:
        if not one_host(size):
            raise ValueError("ranks on several hosts need mpirun -x MASTER_ADDR=… -x MASTER_PORT=…")
        facts = [os.environ[name] for name in MARKS if name in os.environ]
        job = hashlib.sha256(repr(facts or parent()).encode()).hexdigest()[:24]  # equal on all its ranks of this host
        _stores.append(dist.FileStore(str(folder() / job), size))
    return _stores[0], rank == 0 and (not agent or "helpers.launcher.rank" in sys.modules)


def another(store):
    """The store by a connection of its own, where torch can: while one waits for a key, nobody else can use it."""
    from torch import distributed as dist

    if hasattr(store, "clone"):
        return store.clone()
    return dist.TCPStore(store.host, store.port, is_master=False) if isinstance(store, dist.TCPStore) else store


def has(store, key):
    """Whether a key is in the store; torch 1.12 has no `check`."""
    if hasattr(store, "check"):
        return store.check([key])
    try:
        store.wait([key], timedelta(milliseconds=1))
    except RuntimeError:
        return False
    return True


def folder():
    """A folder for files of this user's jobs, which no other user can read."""
    path = Path(tempfile.gettempdir(), f"helpers-hvd-{os.getuid()}")
    path.mkdir(mode=0o700, exist_ok=True)
    found = os.lstat(path)
    if not path.is_dir() or path.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{path} is not this user's alone; remove it, or set TMPDIR to a folder of your own")
    return path


def parent():
    """A name for the process that started this one, which torchrun's restarts do not change."""
    return f"{os.getppid()}-{(_stat(os.getppid()) or [0] * 20)[19]}"


def address(size):
    """The address for gloo: that of the network interface towards the other hosts."""
    towards = os.environ.get("MASTER_ADDR")
    if one_host(size) or not towards:
        return "127.0.0.1" if one_host(size) else socket.gethostbyname(socket.gethostname())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((socket.gethostbyname(towards), 9))  # sends nothing, only picks the interface
        return probe.getsockname()[0]


def host():
    """A name for this host, equal on all its ranks: host name and network namespace (a machine may have several)."""
    try:
        network = os.stat("/proc/self/ns/net").st_ino
    except OSError:
        network = 0
    return f"{socket.gethostname()}/{network}/{os.environ.get('GROUP_RANK', '')}"


def seats(hosts, numbers):
    """Each rank's [local_rank, local_size, cross_rank, cross_size], and whether all hosts have equally many ranks.

    `hosts`: the host of each rank; `numbers`: the launcher's local ranks.
    """
    on = {}
    for rank, name in enumerate(hosts):
        on.setdefault(name, []).append(rank)
    local = [on[name].index(rank) for rank, name in enumerate(hosts)]
    if all(sorted(numbers[rank] for rank in ranks) == list(range(len(ranks))) for ranks in on.values()):
        local = list(numbers)
    table = []
    for rank, name in enumerate(hosts):
        across = [other for other in on if any(local[r] == local[rank] for r in on[other])]
        table.append([local[rank], len(on[name]), across.index(name), len(across)])
    return table, len({len(ranks) for ranks in on.values()}) == 1


def state(process):
    """ "T" for a process of this host that a signal or a debugger has stopped, "Z" for one that has ended, else ""."""
    if not os.path.exists("/proc/self/stat"):  # macOS
        return ""
    found = (_stat(process) or ["Z"])[0].upper()
    return {"T": "T", "Z": "Z", "X": "Z"}.get(found, "")


def _stat(process):
    """The fields of /proc/<process>/stat from the state on; None where there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None

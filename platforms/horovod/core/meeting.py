"""How the ranks of a job find each other: rank 0 publishes a notice with its address and the job's secret.

On one host the notice is a file that only this user can read. On several hosts it is in the store that the ranks of one
launcher share; whoever can read that store can read the secret. MASTER_ADDR need not be set.
"""

import hashlib
import json
import os
import signal
import socket
import stat
import tempfile
import threading
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from . import place, roster


def board(rank, members, generation):
    """The place of the notice: an object with `put(notice)`, `get(patience)` and `remove()`.

    Args:
        rank: the launcher's number of this process.
        members: the ranks that meet. generation: (version of the roster, how often its members have met).
    """
    name = "-".join(map(str, generation))
    if one_host(len(members)):
        return FileBoard(f"{job()}-{name}")
    return StoreBoard(f"helpers-hvd-{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}-{name}", rank, len(members))


@contextmanager
def tidied(board):
    """Remove the notice when this rank fails inside, also when its launcher stops it."""

    def leave(number, frame):
        raise SystemExit(128 + number)

    stoppable = threading.current_thread() is threading.main_thread()
    stoppable = stoppable and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if stoppable:
        signal.signal(signal.SIGTERM, leave)
    try:
        yield
    except BaseException:
        board.remove()
        raise
    finally:
        if stoppable:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def one_host(size):
    """Whether all ranks are on this host, according to the launcher; those of a roster are."""
    return roster.folder() is not None or place.local_size(size) >= size


def address(size):
    """The address rank 0 listens on: that of the network interface towards the other hosts."""
    if one_host(size):
        return "127.0.0.1"
    towards = os.environ.get("MASTER_ADDR") or place.several_hosts().mpirun_job()[1][0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((socket.gethostbyname(towards), 9))  # sends nothing, only picks the interface
        return probe.getsockname()[0]


def job():
    """A name for this job: equal on all its ranks, different from other running jobs of this user."""
    facts = [os.environ.get(name) for name in ("PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri")]
    if "MASTER_PORT" in os.environ:
        facts += [os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")]
        facts.append(os.environ.get("TORCHELASTIC_RESTART_COUNT"))
    if not any(facts):
        facts = [place.parent()]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:24]


class FileBoard:
    """A file of mode 0600 in a folder of mode 0700; it is removed when all ranks have come."""

    def __init__(self, name):
        folder = Path(tempfile.gettempdir(), f"helpers-hvd-{os.getuid()}")
        folder.mkdir(mode=0o700, exist_ok=True)
        _private(folder, stat.S_ISDIR)
        self.path = folder / name

    def put(self, notice):
        draft = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(notice, file)
        os.replace(draft, self.path)

    def get(self, patience):
        """The notice, or None if it is not there yet."""
        try:
            _private(self.path, stat.S_ISREG)
            return json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            time.sleep(min(0.005, patience))
            return None

    def remove(self):
        self.path.unlink(missing_ok=True)


def _private(path, kind):
    found = os.lstat(path)
    if not kind(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{path} is not this user's alone; remove it, or set TMPDIR to a folder of your own")


class StoreBoard:
    """The store on MASTER_ADDR; under mpirun without it, the store of `group.rendezvous`."""

    def __init__(self, name, rank, size):
        self.name, self._rank, self._size = name, rank, size
        self._store = None

    def _connected(self, patience):
        from torch.distributed import TCPStore

        if self._store is None and "MASTER_ADDR" not in os.environ:
            self._store = place.several_hosts().store(self._rank, self._size)
        elif self._store is None:
            host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
            serve = self._rank == 0 and not agent  # otherwise the launcher serves the store
            self._store = TCPStore(host, port, None, serve, timedelta(seconds=patience), wait_for_workers=False)
        return self._store

    def put(self, notice):
        self._connected(30).set(self.name, json.dumps(notice))

    def get(self, patience):
        """The notice, or None if it is not there yet."""
        try:
            store = self._connected(patience)
            store.wait([self.name], timedelta(seconds=patience))
        except (RuntimeError, TimeoutError):  # DistStoreError, or the store is not reachable yet
            time.sleep(min(0.05, patience))
            return None
        return json.loads(store.get(self.name))

    def remove(self):
        """The notice stays as long as the store does."""

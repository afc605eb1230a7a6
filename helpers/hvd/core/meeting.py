"""How the ranks of a job find each other: rank 0 publishes a notice with its address and the job's secret.

On one host the notice is a file that only this user can read. On several hosts it is in torchrun's
store, or Open MPI broadcasts it. MASTER_ADDR need not be set.
"""

import ctypes
import hashlib
import json
import os
import re
import secrets
import socket
import stat
import sys
import tempfile
import time
from pathlib import Path

from ...launcher.rendezvous import local_size, parent
from .errors import RankLost

ADDRESS = "HELPERS_HVD_ADDRESS"  # where rank 0 listens, if neither loopback nor the guess below is right


def board(rank, members, generation):
    """The place of the notice: an object with `draft(size)`, `put(notice)`, `get(patience)` and `remove()`.

    Args:
        rank: the launcher's number of this process.
        members: the ranks that meet. generation: how often this job has met before.
    """
    if one_host(len(members)):
        return FileBoard(f"{job()}-{generation}")
    if "OMPI_COMM_WORLD_RANK" in os.environ and "MASTER_ADDR" not in os.environ:
        return MPIBoard(generation, members)
    return StoreBoard(f"helpers-hvd-{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}-{generation}")


def one_host(size):
    """Whether all ranks are on this host according to the launcher, or share a folder (then ADDRESS is set)."""
    return local_size(size) >= size or ADDRESS in os.environ


def address(size):
    """The address rank 0 listens on: that of the network interface towards the other hosts."""
    given = os.environ.get(ADDRESS)
    if given:
        return given
    if one_host(size):
        return "127.0.0.1"
    mpirun = re.findall(r"tcp://([0-9.]+)", os.environ.get("OMPI_MCA_orte_hnp_uri", ""))  # the host of mpirun itself
    towards = os.environ.get("MASTER_ADDR") or (mpirun + [socket.gethostname()])[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((socket.gethostbyname(towards), 9))  # sends nothing, only picks the interface
        return probe.getsockname()[0]


def job():
    """A name for this job: equal on all its ranks, different from other running jobs of this user."""
    facts = [os.environ.get(name) for name in ("HELPERS_HVD_JOB", "PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri")]
    if "MASTER_PORT" in os.environ:
        facts += [os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")]
        facts.append(os.environ.get("TORCHELASTIC_RESTART_COUNT"))
    if not any(facts):
        facts = [parent()]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:24]


class Board:
    """The place of a notice."""

    def draft(self, size):
        """The notice rank 0 will publish: the address to listen on (port 0: any), and a new secret."""
        return {"host": address(size), "port": 0, "secret": secrets.token_hex(32)}

    def remove(self):
        """Remove the notice, when all ranks have come."""


class FileBoard(Board):
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
        try:
            self.path.unlink()
        except FileNotFoundError:
            pass


def _private(path, kind):
    found = os.lstat(path)
    if not kind(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{path} is not this user's alone; remove it, or set TMPDIR to a folder of your own")


class StoreBoard(Board):
    """torchrun's store on MASTER_ADDR; whoever can read that store can read the secret."""

    def __init__(self, name):
        self.name = name
        self._store = None

    def _connected(self, patience):
        from datetime import timedelta

        from torch.distributed import TCPStore

        if self._store is None:
            host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
            first = os.environ.get("RANK") == "0" and not agent  # otherwise the launcher serves the store
            self._store = TCPStore(host, port, None, first, timedelta(seconds=patience), wait_for_workers=False)
        return self._store

    def put(self, notice):
        self._connected(30).set(self.name, json.dumps(notice))

    def get(self, patience):
        from datetime import timedelta

        try:
            store = self._connected(patience)
            store.wait([self.name], timedelta(seconds=patience))
        except RuntimeError as error:  # DistStoreError, or the store is not reachable yet
            print(f"waiting for the first rank's notice: {error}", file=sys.stderr)
            return None
        return json.loads(store.get(self.name))


class MPIBoard(Board):
    """One MPI_Bcast through Open MPI's own library, because the hosts share nothing else.

    MPI cannot be initialized twice in a process, so later meetings use the address of the first.
    """

    SIZE = 512
    _earlier = None  # the first meeting's notice and first rank

    def __init__(self, generation, members):
        self._generation, self._first = generation, members[0]
        if generation and (self._earlier is None or self._earlier[1] != self._first):
            raise RankLost(
                f"rank {self._first} would be the first now, and the other hosts do not know its address; "
                "start the job again (under torchrun the ranks can meet again)"
            )

    def draft(self, size):
        return self._again() if self._generation else super().draft(size)

    def put(self, notice):
        if not self._generation:
            self._broadcast(json.dumps(notice).encode())
            MPIBoard._earlier = notice, self._first

    def get(self, patience):
        if self._generation:
            time.sleep(0.01)
            return self._again()
        MPIBoard._earlier = json.loads(self._broadcast(b"")), self._first
        self.get = lambda patience: MPIBoard._earlier[0]  # later calls return the same
        return MPIBoard._earlier[0]

    def _again(self):
        notice = self._earlier[0]
        secret = hashlib.sha256(f"{notice['secret']} {self._generation}".encode()).hexdigest()
        return {**notice, "secret": secret}

    def _broadcast(self, data):
        os.environ.setdefault("OMPI_MCA_btl", "tcp,self")  # TCP is enough here, and leaves no shared memory behind
        mpi = ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL)
        buffer = ctypes.create_string_buffer(data, self.SIZE)
        world, byte = (ctypes.byref(ctypes.c_char.in_dll(mpi, f"ompi_mpi_{name}")) for name in ("comm_world", "byte"))
        mpi.MPI_Init(None, None)
        mpi.MPI_Bcast(buffer, self.SIZE, byte, 0, world)
        mpi.MPI_Finalize()
        return buffer.value

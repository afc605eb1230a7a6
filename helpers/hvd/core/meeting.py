"""How the ranks of a job find each other: where the first one listens, and the secret of the job.

On one host they meet in a file that only this user can read; under torchrun on several hosts in
torchrun's own store; under Open MPI on several hosts by one MPI broadcast. MASTER_ADDR need not
be set for it.
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

ADDRESS = "HELPERS_HVD_ADDRESS"  # where the first rank listens, if loopback or the guess will not do


def board(rank, members, generation):
    """Where the ranks' notice is put up: an object with `put(notice)`, `get(patience)` and `remove()`.

    Args:
        rank: this process's rank as its launcher numbered it.
        members: ranks that are to meet. generation: how often this job has met before.
    """
    if one_host(len(members)):
        return FileBoard(f"{job()}-{generation}")
    if "OMPI_COMM_WORLD_RANK" in os.environ and "MASTER_ADDR" not in os.environ:
        return MPIBoard(generation, members)
    return StoreBoard(f"helpers-hvd-{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}-{generation}")


def one_host(size):
    """Whether all ranks are on this host, as far as the launcher tells (or share a folder: ADDRESS is set)."""
    return local_size(size) >= size or ADDRESS in os.environ


def address(size):
    """The address that the first rank listens on: that of the interface which the job uses."""
    given = os.environ.get(ADDRESS)
    if given:
        return given
    if one_host(size):
        return "127.0.0.1"
    mpirun = re.findall(r"tcp://([0-9.]+)", os.environ.get("OMPI_MCA_orte_hnp_uri", ""))  # where mpirun itself is
    towards = os.environ.get("MASTER_ADDR") or (mpirun + [socket.gethostname()])[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((socket.gethostbyname(towards), 9))  # sends nothing: asks which interface leads there
        return probe.getsockname()[0]


def job():
    """A name for this job that all its ranks work out alike and no other job of this user has at the same time."""
    told = [os.environ.get(name) for name in ("HELPERS_HVD_JOB", "PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri")]
    if "MASTER_PORT" in os.environ:
        told += [os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")]
        told.append(os.environ.get("TORCHELASTIC_RESTART_COUNT"))
    if not any(told):
        told = [parent()]
    return hashlib.sha256(repr(told).encode()).hexdigest()[:24]


class Board:
    """Where a notice is put up."""

    def draft(self, size):
        """What the first rank will put up: where it is going to listen (port 0: any), and a new secret."""
        return {"host": address(size), "port": 0, "secret": secrets.token_hex(32)}

    def remove(self):
        """Everybody has come."""


class FileBoard(Board):
    """A file of mode 0600 in a folder of mode 0700, gone as soon as everybody has come."""

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
        """The notice, or None if it is not up yet."""
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
    """torchrun's store on MASTER_ADDR; the secret is as private there as torchrun's own addresses are."""

    def __init__(self, name):
        self.name = name
        self._store = None

    def _connected(self, patience):
        from datetime import timedelta

        from torch.distributed import TCPStore

        if self._store is None:
            host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
            first = os.environ.get("RANK") == "0" and not agent  # else the launcher serves it
            self._store = TCPStore(host, port, None, first, timedelta(seconds=patience), wait_for_workers=False)
        return self._store

    def put(self, notice):
        self._connected(30).set(self.name, json.dumps(notice))

    def get(self, patience):
        from datetime import timedelta

        try:
            store = self._connected(patience)
            store.wait([self.name], timedelta(seconds=patience))
        except RuntimeError as error:  # DistStoreError, or a store that is not there yet
            print(f"waiting for the first rank's notice: {error}", file=sys.stderr)
            return None
        return json.loads(store.get(self.name))


class MPIBoard(Board):
    """One MPI_Bcast through the library that mpirun brought, since nothing else is shared between the hosts.

    MPI cannot be started twice in a process: later meetings are where the first one was.
    """

    SIZE = 512
    _earlier = None  # the first meeting's notice and first rank

    def __init__(self, generation, members):
        self._generation, self._first = generation, members[0]
        if generation and (self._earlier is None or self._earlier[1] != self._first):
            raise RankLost(
                f"rank {self._first} would be the first now, and the other hosts do not know where to find it; "
                "start the job again (torchrun's ranks find each other anew)"
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
        self.get = lambda patience: MPIBoard._earlier[0]  # asked again, it does not change
        return MPIBoard._earlier[0]

    def _again(self):
        notice = self._earlier[0]
        secret = hashlib.sha256(f"{notice['secret']} {self._generation}".encode()).hexdigest()
        return {**notice, "secret": secret}

    def _broadcast(self, data):
        os.environ.setdefault("OMPI_MCA_btl", "tcp,self")  # enough for this, and it leaves no shared memory behind
        mpi = ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL)
        buffer = ctypes.create_string_buffer(data, self.SIZE)
        world, byte = (ctypes.byref(ctypes.c_char.in_dll(mpi, f"ompi_mpi_{name}")) for name in ("comm_world", "byte"))
        mpi.MPI_Init(None, None)
        mpi.MPI_Bcast(buffer, self.SIZE, byte, 0, world)
        mpi.MPI_Finalize()
        return buffer.value

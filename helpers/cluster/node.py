"""What an engine runs on each node: the fork server of that machine, under the orders of the notebook's Supervisor.

The node's ranks are those that `launch` makes on one machine. What becomes of them goes to the notebook, and its
orders come from there, through what the engine has: a shared folder, or the calls of an actor.
"""

import os
import pickle
import socket
import struct
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

from ..launcher import client, shared_message
from ..launcher.engine import ForkServerEngine

SIZE = struct.Struct("<Q")  # of an object in a file
MEET = 120.0  # s in which the first machine says where the store is
LOCAL = ("tmpfs", "ramfs", "overlay")  # file systems that no other machine sees


def listen():
    """A socket for the store of rank 0, which other machines reach, too."""
    return socket.create_server(("", 0), backlog=1024)


def address(name):
    """An address of this machine for others, which may know it by `name`."""
    for one in (name, socket.gethostname()):
        try:
            return socket.gethostbyname(one)
        except (OSError, TypeError):  # a name that only the cluster knows
            continue
    return "127.0.0.1"


def text_of(path):
    """The text of a file that another machine is about to write."""
    end = time.monotonic() + MEET
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.1)
    return path.read_text()


class Node:
    """The ranks of one machine.

    Args:
        number: the machine's.
        plan: "first" and "nprocs" are its ranks, "world" counts all; "address" and "port" are the store's;
            "threads" of each rank, if the notebook gives none; "folder", if it is not the notebook's.
        head, file: of the SharedMessage that is the payload.
        store: on the first machine, what `listen` has given.
    """

    def __init__(self, number, plan, head, file, store=None):
        self.first = plan["first"]
        around = pickle.loads(shared_message.mapped(os.dup(file.fileno()), head)[0])
        folder = plan.get("folder") or around["folder"]
        try:
            os.chdir(folder)
        except OSError as error:
            raise RuntimeError(
                f"{socket.gethostname()} does not see the folder of the notebook, {folder} ({error.strerror}): start "
                "the notebook in a folder that all nodes share"
            ) from None
        os.environ.update(around["environment"], GROUP_RANK=str(number))
        sys.path += [entry for entry in around["path"] if entry not in sys.path]
        threads = around["threads"] or plan["threads"]
        own = {"environment": dict(os.environ), "folder": folder, "path": list(sys.path), "threads": threads}
        self.engine = ForkServerEngine(client.server(), {**plan, "surroundings": own}, store or socket.socket())
        self.engine.start(plan["nprocs"], SimpleNamespace(head=head, file=file))

    def step(self, orders, timeout) -> list:
        """Follow the orders, (name of a method of Engine, *arguments); what has happened, for the notebook."""
        for name, about, *rest in orders:
            with suppress(OSError, KeyError):  # it has ended
                if name == "signal":
                    self.engine.signal(about, {rank - self.first for rank in rest[0]})
                elif about - self.first in self.engine.channels:
                    self.engine.tell(about - self.first, *rest)
        return [self._there(*event) for event in self.engine.events(timeout) if event[0] != "started"]

    def _there(self, kind, about, *rest):
        if kind == "refused":
            return kind, f"{socket.gethostname()}: {about or 'its fork server was lost'}"
        if kind == "answer":
            rest = *rest[:-1], [bytearray(part) for part in rest[-1]]
        return kind, self.first + about, *rest


def layout(nprocs, nodes):
    """{"first", "nprocs", "world"} for each of `nodes` machines, which share the ranks evenly, or ValueError."""
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:
        raise ValueError(f"nodes is {nodes!r}; give a whole number, 1 or more")
    if nprocs % nodes:
        raise ValueError(
            f"{nprocs} ranks cannot be split evenly over {nodes} nodes; choose {nodes * -(-nprocs // nodes)}"
        )
    each = nprocs // nodes
    return [{"first": each * node, "nprocs": each, "world": nprocs} for node in range(nodes)]


def not_shared(path) -> str:
    """Why other machines cannot see `path`, "" if they may."""
    path = os.path.realpath(path)
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    inside = [(len(point), kind) for point, kind in mounts if f"{path}/".startswith(f"{point.rstrip('/')}/")]
    if max(inside, default=(0, ""))[1] in LOCAL:
        return f"{path} lies in the memory or the container of this machine"
    places = {os.path.realpath(place) for place in (tempfile.gettempdir(), "/tmp", "/var/tmp")}
    return next(
        (f"{path} is a temporary folder of this machine" for one in places if f"{path}/".startswith(f"{one}/")), ""
    )


class Outbox:
    """A file to which one process appends objects, for another on another machine."""

    def __init__(self, path):
        self.file = open(path, "ab")

    def send(self, *objects):
        for data in map(pickle.dumps, objects):
            self.file.write(SIZE.pack(len(data)) + data)
        self.file.flush()


class Inbox:
    """Reads what an Outbox on another machine has written so far."""

    def __init__(self, path):
        self.path, self.at = path, 0

    def read(self):
        """The objects that are new."""
        found = []
        if self.path.exists():
            with open(self.path, "rb") as file:  # opened anew: else NFS may show what it showed before
                while len(head := self._bytes(file, self.at, SIZE.size)) == SIZE.size:
                    size = SIZE.unpack(head)[0]
                    if len(data := self._bytes(file, self.at + SIZE.size, size)) < size:
                        break
                    found.append(pickle.loads(data))
                    self.at += SIZE.size + size
        return found

    @staticmethod
    def _bytes(file, at, size):
        file.seek(at)
        return file.read(size)

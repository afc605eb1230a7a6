"""The data plane: runs collectives with torch.distributed, in process groups of its own.

CPU tensors go through gloo, CUDA tensors through NCCL; tensors on other devices are copied to the
CPU and back. The groups connect through the engine's authenticated connections instead of a store,
and torch's default process group is not touched.
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from .collectives import Call, Room, timeout


class EngineStore(dist.Store):
    """The store that a process group needs, over the engine's connections."""

    def __init__(self, prefix, post, read):
        super().__init__()
        self._prefix, self._post, self._read = prefix, post, read

    def set(self, key, value):
        self._post(f"{self._prefix}/{key}", value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key):
        return self._read(f"{self._prefix}/{key}", timeout().total_seconds())

    def wait(self, keys, within=None):
        for key in keys:
            self._read(f"{self._prefix}/{key}", (within or timeout()).total_seconds())

    def has_extended_api(self):
        return False


class Plane:
    """Collectives of one rank; its methods are called from one thread.

    Args:
        rank, size: this process in the world. post, read: functions of the engine's notices.
        address: this host's address. patience: seconds that the ranks may take to connect.
    """

    def __init__(self, rank, size, post, read, address, patience):
        self.rank, self._post, self._read, self._address = rank, post, read, address
        self._patience = timedelta(seconds=patience)
        self._sets = {0: list(range(size))}
        self._groups = {}
        self._streams = {}
        self._room = Room()
        self.add_set(0, self._sets[0])

    def add_set(self, number, ranks):
        """Create the process group of a set; all its members do so at the same time."""
        self._sets[number] = ranks
        if self.rank in ranks:
            self._group(number, "cpu")

    def drop_set(self, number):
        """Drop a set's groups."""
        self._sets.pop(number, None)
        for key in [key for key in self._groups if key[0] == number]:
            del self._groups[key]

    def close(self):
        """Drop all groups."""
        self._groups.clear()

    def _group(self, number, device):
        key = number, device
        if key not in self._groups:
            ranks = self._sets[number]
            store = EngineStore(f"{number}/{device}", self._post, self._read)
            place = ranks.index(self.rank), len(ranks)
            if device == "cuda":
                group = dist.ProcessGroupNCCL(store, *place, timeout())
            else:
                options = dist.ProcessGroupGloo._Options()
                options._timeout = self._patience  # for connecting; collectives have a timeout of their own
                options._devices = [_gloo_device(self._address)]
                group = dist.ProcessGroupGloo(store, *place, options)
            self._groups[key] = group, store  # the group uses the store as long as it exists
        return self._groups[key][0]

    def run(self, message, entries):
        """Run one decision.

        Args:
            message: kind, set, and what the ranks have to know of each other's tensors.
            entries: this rank's entries; None where it has joined and contributes zeros.

        Returns:
            A result for each entry.
        """
        kind = message["kind"]
        if kind == "barrier":
            return [None]
        if entries[0] is None and "spec" not in message:
            return [None] * len(entries)
        specs = message.get("spec") or [entry.request for entry in entries]
        devices = {tensor[2] for tensor in specs[0]["tensors"]}  # what is fused is of one kind of device
        device = "cuda" if devices == {"cuda"} and nccl_version() else "cpu"
        call = Call(self._group(message["set"], device), self._sets[message["set"]], self.rank, message, self._room)
        if device == "cuda":
            return self._on_stream(call, kind, specs, entries)
        return getattr(call, kind)(specs, entries)

    def _on_stream(self, call, kind, specs, entries):
        """Run on a stream of its own, after the computing stream has written the tensors."""
        here = next((tensor.device for entry in entries if entry for tensor in entry.inputs), None)
        here = torch.device("cuda", torch.cuda.current_device()) if here is None else here
        stream = self._streams.setdefault(here, torch.cuda.Stream(here))
        with torch.cuda.device(here), torch.cuda.stream(stream):
            for entry in entries:
                if entry is not None and entry.ready is not None:
                    stream.wait_event(entry.ready)
            results = getattr(call, kind)(specs, entries)
        stream.synchronize()
        return results


def _gloo_device(address):
    """The network interface of the engine's connections, unless GLOO_SOCKET_IFNAME names another."""
    name = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if name:
        return dist.ProcessGroupGloo.create_device(interface=name)
    return dist.ProcessGroupGloo.create_device(hostname=address)


def nccl_version():
    """NCCL's version as one number, 0 without it."""
    if not (dist.is_nccl_available() and torch.cuda.is_available()):
        return 0
    version = torch.cuda.nccl.version()
    return version if isinstance(version, int) else sum(part * 100**i for i, part in enumerate(reversed(version[:3])))

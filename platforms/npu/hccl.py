"""The process group `hccl` of the emulated device: gloo over the memory of the cards.

As HCCL it takes tensors on cards only, in the formats it knows, contiguous, and one rank a card.
"""

import functools
import os
import socket
from collections import Counter

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.utils._pytree import tree_leaves, tree_map

from .cards import visible_cards

calls, bytes_sent = Counter(), Counter()  # by collective, in this process
rank = None  # of this process in its first group
_kinds = ("npu",)  # of tensors that the next group takes
FORMATS = {
    *(torch.float32, torch.float16, torch.bfloat16, torch.bool),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8),
}
COLLECTIVES = (
    "broadcast allreduce allreduce_coalesced reduce allgather allgather_coalesced all_gather_single "
    "all_gather_single_coalesced gather scatter reduce_scatter reduce_scatter_single reduce_scatter_single_coalesced "
    "all_to_all_single alltoall send recv recv_anysource _allgather_base _reduce_scatter_base alltoall_base"
).split()


def _backend_class():
    """The class that a backend of torch.distributed derives from when it is written in Python."""
    try:
        c10d.Backend(0, 1)
    except TypeError:  # Releases such as 2.12 cannot make one in Python. There a whole process group stands for it.
        return c10d.ProcessGroup
    return c10d.Backend


class Hccl(_backend_class()):
    """Every collective runs in gloo on zero-copy host views of the cards' buffers."""

    supports_coalescing = False  # batch_isend_irecv asks; the inherited property would ask this class, without end

    def __init__(self, store, number, size, timeout):
        global rank
        super().__init__(number, size)
        rank = number if rank is None else rank
        self._store, self._place, self._met = store, (number, size), False
        self._kinds, self._gloo = _kinds, c10d.ProcessGroupGloo(store, number, size, timeout)

    @property
    def _device_types(self):
        """Where collectives of objects may put theirs: a process group is asked, a backend is not."""
        return [torch.device(kind) for kind in self._kinds]

    def getBackendName(self):
        return "hccl"

    def _meet(self, card):
        """Before the first collective: no two ranks of a host may be on one card."""
        if self._met:
            return
        self._met = True
        number, size = self._place
        card = visible_cards()[card]
        host = f"{socket.gethostname()} {os.environ.get('GROUP_RANK', '')}"  # torchrun's number of the host
        self._store.set(f"card/{number}", f"{host} {card}")
        everyone = [self._store.get(f"card/{r}") for r in range(size)]
        same = [r for r in range(size) if everyone[r] == everyone[number]]
        if len(same) > 1:
            raise RuntimeError(
                f"HCCL: ranks {', '.join(map(str, same))} are all on npu:{card}; each needs a card of its own: "
                "call torch.npu.set_device(local_rank) before anything else (emulated NPU)"
            )

    def _run(self, name, args):
        tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        if "cpu" in self._kinds and all(tensor.is_cpu for tensor in tensors):
            return getattr(self._gloo, name)(*args)
        for tensor in tensors:
            _check(tensor, name)
        self._meet(tensors[0].get_device() if tensors else torch.npu.current_device())
        calls[name] += 1
        bytes_sent[name] += sum(t.nbytes for t in tensors)
        # gloo cuts what it gathers along the first dimension, whatever it is
        flat = name in ("all_gather_single", "_allgather_base")

        def host(value):
            if not isinstance(value, torch.Tensor):
                return value
            view = torch.ops.helpers_npu.alias_cpu(value.detach())
            return view.view(-1) if flat else view

        return _Work(getattr(self._gloo, name)(*tree_map(host, args)), args[0])

    def barrier(self, opts=None):
        self._meet(torch.npu.current_device())
        calls["barrier"] += 1
        return _Work(self._gloo.barrier(), [])


def _check(tensor, name):
    if tensor.device.type != "npu":
        # PyTorch's own words, which it says itself where hccl is not a process group.
        raise RuntimeError(f"No backend type associated with device type {tensor.device.type}")
    if tensor.dtype not in FORMATS:
        raise RuntimeError(f"HCCL {name}: unsupported data type {tensor.dtype}; use float32 (emulated NPU)")
    if not tensor.is_contiguous():
        raise RuntimeError(f"HCCL {name}: tensors must be contiguous (emulated NPU)")


_waited_for = set()  # works whose Python part torch before 2.8 does not keep alive, and then waits for ever
_KEEPS_WORKS = torch.__version__ >= (2, 8)


class _Work(c10d.Work):
    """gloo's work, whose future gives the cards' tensors."""

    def __init__(self, work, result):
        super().__init__()
        self._work, self._result = work, result
        if not _KEEPS_WORKS:
            _waited_for.add(self)

    def wait(self, timeout=None):
        self._work.wait() if timeout is None else self._work.wait(timeout)
        _waited_for.discard(self)
        return True

    def is_completed(self):
        return self._work.is_completed()

    def is_success(self):
        return self._work.is_success()

    def get_future(self):
        # Waiting here keeps it simple: DDP asks for futures in the order in which it reduces its buckets.
        self.wait()
        future = torch.futures.Future()
        future.set_result(self._result)
        return future


def register() -> None:
    """Make `hccl` a backend of torch.distributed, the one for tensors on npu."""
    for name in COLLECTIVES:
        if hasattr(c10d.ProcessGroupGloo, name):
            setattr(Hccl, name, _collective(name))
    dist.Backend.register_backend("hccl", Hccl, devices=["npu"])
    if issubclass(Hccl, c10d.ProcessGroup):
        _stand_for_gloo()
    dist.is_hccl_available = lambda: True  # a name that torch_npu adds


def _collective(name):
    def run(self, *args):
        return self._run(name, args)

    run.__name__ = name
    return run


def _stand_for_gloo():
    """Where hccl is a process group, PyTorch drops the backend beside it in "cpu:gloo,npu:hccl"; tell hccl of it."""
    from torch.distributed import distributed_c10d

    make = distributed_c10d._new_process_group_helper

    @functools.wraps(make)
    def told(size, number, ranks, backend, *args, **kwargs):
        global _kinds
        beside = distributed_c10d.BackendConfig(backend).get_device_backend_map()
        _kinds = ("cpu", "npu") if beside.get("cpu") == "gloo" else ("npu",)
        return make(size, number, ranks, backend, *args, **kwargs)

    distributed_c10d._new_process_group_helper = told

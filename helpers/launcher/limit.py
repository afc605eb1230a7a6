"""`launch(…, memory="600 MB")`: a limit on what each rank may hold, so that too large a model fails as it would.

On a CPU the system itself enforces it (Linux, RLIMIT_DATA: private writable memory, touched or not), counted from
what the rank has when its function starts, so without the interpreter and its libraries. On CUDA it is the part of the
device's memory that the caching allocator may take. A process that a rank starts, such as a DataLoader worker, has the
same limit for itself.
"""

from __future__ import annotations  # platforms.horovod is imported on Python 3.8, too

import os
import re
import sys
from pathlib import Path

from .. import device
from . import malloc
from .errors import OutOfMemory
from .language import marked

LEAST = 32_000_000  # bytes; the threads of a process group and of autograd take some 15 MB
UNITS = {"MB": 1e6, "GB": 1e9, "MiB": 2**20, "GiB": 2**30}
SIGNS = ("can't allocate memory", "bad_alloc", "can't start new thread", "Cannot allocate memory", "out of memory")
ASKED = re.compile(r"[Tt]ried to allocate ([\d.]+ \w+)")

_imposed = None  # (bytes that the function may hold, bytes that the process held before it)


def checked(memory, environment):
    """`memory` as a number of bytes, or None without a limit.

    Raises:
        TypeError, ValueError: it is no amount of memory, or too small; nothing here enforces it.
    """
    if memory is None:
        return None
    if not isinstance(memory, (int, float, str)) or isinstance(memory, bool):
        raise TypeError(f'memory is {memory!r}; give text such as "600 MB", a number of bytes, or None for no limit')
    size = memory
    if isinstance(memory, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(\w+)\s*", memory)
        if not found or found[2] not in UNITS:
            raise ValueError(f'memory is {memory!r}; give a number and one of {", ".join(UNITS)}, such as "600 MB"')
        size = float(found[1]) * UNITS[found[2]]
    if not LEAST <= size < float("inf"):
        raise ValueError(
            f"memory is {memory!r}; a rank needs at least {in_words(LEAST)} besides its interpreter, for its threads "
            "and what the function imports"
        )
    kind = device.accelerator_kind() if device.accelerator_count(environment) else "cpu"
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"memory= limits ranks on CUDA and on the CPU, not on {kind}; leave it out")
    if kind == "cpu" and sys.platform != "linux":
        raise ValueError(f"memory= limits CPU ranks by RLIMIT_DATA, not enforced on {sys.platform}; leave it out")
    return int(size)


def impose(size):
    """Allow the function that this rank is about to run no more than `size` bytes; None for no limit."""
    global _imposed
    if size is None:
        return
    if device.accelerator_count():
        import torch

        index = int(os.environ["LOCAL_RANK"])
        whole = torch.cuda.get_device_properties(index).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, size / whole), index)
        _imposed = size, 0
        return
    import resource

    malloc.give_pages_back()
    malloc.thin_stacks()
    _imposed = size, _held()
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    soft = sum(_imposed) if hard == resource.RLIM_INFINITY else min(sum(_imposed), hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def explained(error):
    """`error` itself, or the OutOfMemory that it amounts to in a rank with a limit, which is lifted here."""
    if _imposed is None:
        return error
    if not device.accelerator_count():
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (resource.getrlimit(resource.RLIMIT_DATA)[1],) * 2)
    text = str(error)
    if not isinstance(error, MemoryError) and not any(sign in text for sign in SIGNS):
        return error
    size, before = _imposed
    held = _held() - before
    asked = ASKED.search(text)
    more = marked(f"asked for {_readable(asked[1])} more") if asked else marked("asked for more")
    return out_of_memory(size, held, more)


def out_of_memory(size, held, more):
    """The error of a rank that may hold `size` bytes and held `held`; `more` is what it asked for."""
    return OutOfMemory(
        marked(
            f"it may hold {in_words(size)} (memory= of launch), held {in_words(held)} and {more}. Let it hold less: a "
            "smaller batch, activation checkpointing, a sharded optimizer or model (ZeRO, FSDP); or allow it more"
        )
    )


def _held():
    """Bytes that count against the limit now."""
    if device.accelerator_count():
        import torch

        return torch.cuda.memory_reserved(int(os.environ["LOCAL_RANK"]))
    return 1024 * int(re.search(r"VmData:\s*(\d+)", Path("/proc/self/status").read_text())[1])


def _readable(amount):
    number, unit = amount.split()
    return in_words(float(number)) if unit == "bytes" else amount


def in_words(size):
    """Bytes as text, such as "600 MB"."""
    return f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"

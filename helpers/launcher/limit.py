"""`launch(…, memory="600 MB")`: a limit on what each rank may hold, so that too large a model fails as it would.

On a CPU the system itself enforces it (Linux, RLIMIT_DATA: private writable memory, touched or not), counted from
what the rank has when its function starts: without interpreter, libraries and arguments. On CUDA it is the part of the
device's memory that the caching allocator may take. A DataLoader worker has the same limit for itself.
"""

import ctypes
import os
import re
import sys
from pathlib import Path

from .. import device
from .errors import OutOfMemory

LEAST = 32_000_000  # bytes; the threads of a process group and of autograd take some 15 MB
UNITS = {"MB": 1e6, "GB": 1e9, "MiB": 2**20, "GiB": 2**30}
SIGNS = ("can't allocate memory", "bad_alloc", "can't start new thread", "Cannot allocate memory", "out of memory")
ASKED = re.compile(r"[Tt]ried to allocate ([\d.]+ \w+)")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
ALONE = 2**16  # bytes: malloc gives a larger block back to the system when it is freed
STACK = 2**20  # bytes

_imposed = None  # (bytes that the function may hold, bytes that the process held before it)


def checked(memory, environment):
    """`memory` as a number of bytes.

    Raises:
        TypeError, ValueError: it is no amount of memory, or too small; nothing here enforces it.
    """
    if not isinstance(memory, (int, float, str)) or isinstance(memory, bool):
        raise TypeError(f'memory is {memory!r}; give text such as "600 MB", a number of bytes, or None for no limit')
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(MB|GB|MiB|GiB)\s*", memory) if isinstance(memory, str) else None
    if isinstance(memory, str) and not found:
        raise ValueError(f'memory is {memory!r}; give a number and one of {", ".join(UNITS)}, such as "600 MB"')
    size = float(found[1]) * UNITS[found[2]] if found else memory
    if not LEAST <= size < float("inf"):
        raise ValueError(f"memory is {memory!r}; a rank needs at least {in_words(LEAST)} for its threads and imports")
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
    _hold_only_what_is_used()
    _imposed = size, _held()
    _limit_data(sum(_imposed))


def _hold_only_what_is_used():
    """Have glibc return larger freed blocks to the system, and reserve small stacks for new threads.

    Pages that malloc keeps and gaps between blocks would count as held: a sharded model that frees its gathered weights
    would seem to hold twice as much. A stack counts whole, 8 MB by default. Page faults make steps slower.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        libc.mallopt(M_MMAP_THRESHOLD, ALONE)
        libc.mallopt(M_TRIM_THRESHOLD, ALONE)
        attributes = (ctypes.c_char * 256)()  # a pthread_attr_t: 56 or 64 bytes
        libc.pthread_attr_init(attributes)
        libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(STACK))
        libc.pthread_setattr_default_np(attributes)


def _limit_data(size):
    """Set the soft limit; None lifts it."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    limits = [one for one in (size, hard) if one not in (None, resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits, default=hard), hard))


def explained(error):
    """`error` itself, or the OutOfMemory that it amounts to in a rank with a limit, which is lifted here."""
    if _imposed is None:
        return error
    if not device.accelerator_count():
        _limit_data(None)
    text = str(error)
    if not isinstance(error, MemoryError) and not any(sign in text for sign in SIGNS):
        return error
    size, before = _imposed
    held, more = _held() - before, "more"
    if asked := ASKED.search(text):
        number, unit = asked[1].split()
        more = f"{in_words(float(number)) if unit == 'bytes' else asked[1]} more"
    return OutOfMemory(
        f"it may hold {in_words(size)} (memory= of launch), held {in_words(held)} and asked for {more}. Let it hold "
        "less: a smaller batch, activation checkpointing, a sharded optimizer or model (ZeRO, FSDP); or allow it more"
    )


def _held():
    """Bytes that count against the limit now."""
    if device.accelerator_count():
        import torch

        return torch.cuda.memory_reserved(int(os.environ["LOCAL_RANK"]))
    return 1024 * int(re.search(r"VmData:\s*(\d+)", Path("/proc/self/status").read_text())[1])


def in_words(size):
    """Bytes as text, such as "600 MB"."""
    return f"{size / 1e9:.3g} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"

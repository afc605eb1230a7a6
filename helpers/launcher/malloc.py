"""Let a rank keep the memory that it frees, since its next step needs as much again.

Every rank of `launch` does so, whatever function it runs; ranks of torchrun and mpirun when they train.
"""

import ctypes
import os
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
LARGEST_MMAP_THRESHOLD = 32 * 2**20  # bytes; glibc refuses more on 64 bits (HEAP_MAX_SIZE / 2)
NEVER = 2**31 - 1  # bytes: the heap's top is not given back below this, which mallopt takes as an int
RANK_NAMES = ("RANK", "OMPI_COMM_WORLD_RANK")


def keep_pages() -> bool:
    """Have glibc's malloc keep freed memory in this process; False where there is no glibc to ask.

    By default it takes large blocks from the kernel with mmap, gives them back when they are freed, and trims its
    heap. A training step on a CPU frees all its activations and allocates them again, so the kernel would clear
    the same pages in every step: for ResNet-8 at a batch of 64 those are 11,000 page faults, a fifth of the
    step. The computed numbers do not change. A process with an allocator of its own, or with settings of
    its own in MALLOC_* or GLIBC_TUNABLES, keeps those. (mallopt(3), "M_MMAP_THRESHOLD" and "M_TRIM_THRESHOLD")
    """
    own = any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get(
        "GLIBC_TUNABLES", ""
    )
    if sys.platform != "linux" or own:
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version") or not hasattr(libc, "mallopt"):  # musl has no mallopt
        return False
    kept = libc.mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
    return bool(kept and libc.mallopt(M_TRIM_THRESHOLD, NEVER))


def keep_pages_in_rank() -> bool:
    """The same in a process that a launcher started as a rank; a notebook's own kernel is left as it is."""
    return any(name in os.environ for name in RANK_NAMES) and keep_pages()

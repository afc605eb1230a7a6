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
ALONE = 2**16  # bytes: a larger block has pages of its own where freed memory is given back
STACK = 2**20  # bytes

_giving_back = False


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
    if sys.platform != "linux" or own or _giving_back:
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version") or not hasattr(libc, "mallopt"):  # musl has no mallopt
        return False
    kept = libc.mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
    return bool(kept and libc.mallopt(M_TRIM_THRESHOLD, NEVER))


def keep_pages_in_rank() -> bool:
    """The same in a process that a launcher started as a rank; a notebook's own kernel is left as it is."""
    return any(name in os.environ for name in RANK_NAMES) and keep_pages()


def give_pages_back():
    """Have glibc's malloc return each larger block to the system when it is freed, for a rank with a memory limit.

    Pages that are kept would count as held, and so would the gaps between blocks: a sharded model that frees its
    gathered weights would seem to hold twice as much. It costs page faults, so a limit makes steps slower.
    """
    global _giving_back
    _giving_back = True
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        libc.mallopt(M_MMAP_THRESHOLD, ALONE)
        libc.mallopt(M_TRIM_THRESHOLD, ALONE)


def thin_stacks():
    """Have threads that this process starts from now on reserve 1 MB of stack instead of 8, where glibc is.

    A stack counts whole, touched or not, and FSDP's first backward alone starts a thread of autograd for each of the
    kinds of devices that this torch knows.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "pthread_setattr_default_np"):
        attributes = (ctypes.c_char * 256)()  # a pthread_attr_t: 56 or 64 bytes
        libc.pthread_attr_init(attributes)
        libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(STACK))
        libc.pthread_setattr_default_np(attributes)

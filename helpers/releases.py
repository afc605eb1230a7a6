"""What differs between the releases of torch that the kit runs on, from 2.6 to today's; the one place that asks."""

from __future__ import annotations  # helpers.hvd is imported on Python 3.8, too

from datetime import timedelta
from functools import lru_cache

OLDEST = (2, 6)


def number(version) -> tuple:
    """(2, 10) of "2.10.1+cpu"."""
    major, minor, *_ = version.split(".")
    return int(major), int("".join(c for c in minor if c.isdigit()))


@lru_cache
def torch_release() -> tuple:
    """The release of the torch installed here, as (major, minor). Imports torch."""
    import torch

    return number(torch.__version__)


def serve_store(listening, port, size=None, patience=300):
    """A TCPStore on a socket that listens already: nobody can take its port, and nobody comes too early.

    Args:
        listening: the socket's file descriptor, which the store then owns.
        port: the socket's port.
        size: ranks to wait for; None waits for nobody.
        patience: seconds to wait for them.
    """
    from torch.distributed import TCPStore

    # From 2.4 to 2.6 the newer of torch's two servers takes no such socket. Clients do not notice which one serves.
    older = {"use_libuv": False} if (2, 4) <= torch_release() < (2, 7) else {}
    return TCPStore(
        "127.0.0.1", port, size, is_master=True, timeout=timedelta(seconds=patience), wait_for_workers=size is not None,
        master_listen_fd=listening, **older,
    )  # fmt: skip


def device_memory(kind):
    """The module with `reset_peak_memory_stats` and `max_memory_allocated` for devices of `kind` (not "cpu")."""
    import torch

    # torch.accelerator has had them since 2.9.
    return torch.accelerator if torch_release() >= (2, 9) else torch.get_device_module(kind)

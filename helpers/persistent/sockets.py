"""The connections of a rank's process groups: an interrupt shuts these, and no other that the rank may have.

Gloo and the store cannot be interrupted, but they notice when a connection is shut. Theirs are the connections that
appear while torch makes a process group.
"""

import os
import socket
import stat
from contextlib import suppress
from functools import wraps

from ..group import process_group

_of_groups = set()  # (own address, peer's address)
_before = None  # while a group is made: the connections that there were already


def record():
    """From now on remember which connections belong to process groups."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    process_group.join = _recorded(process_group.join)  # it may make a store of its own
    dist.init_process_group = c10d.init_process_group = _recorded(c10d.init_process_group)
    c10d._new_process_group_helper = _recorded(c10d._new_process_group_helper)  # all other ways to a group call it


def _recorded(make):
    @wraps(make)
    def recorded(*args, **kwargs):
        global _before
        if _before is not None:
            return make(*args, **kwargs)
        _before = before = _connections().keys()
        try:
            return make(*args, **kwargs)
        finally:
            _before = None
            _of_groups.update(_connections().keys() - before)

    return recorded


def shut():
    """Make whoever waits in a collective, in the store, or for a new group return with an error."""
    for connection, fd in _connections().items():
        if connection in _of_groups or (_before is not None and connection not in _before):
            with suppress(OSError), socket.socket(fileno=os.dup(fd)) as one:  # closed meanwhile
                one.shutdown(socket.SHUT_RDWR)


def forget():
    """The groups there were are no longer used."""
    global _before
    _before = None  # an interrupt may have left it
    _of_groups.clear()


def _connections():
    """{(own address, peer's address): descriptor} of this process's TCP connections."""
    found = {}
    for name in os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"):  # Linux, macOS
        with suppress(OSError):  # not connected, or closed meanwhile
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.type == socket.SOCK_STREAM and one.family in (socket.AF_INET, socket.AF_INET6):
                    found[one.getsockname(), one.getpeername()] = int(name)
    return found

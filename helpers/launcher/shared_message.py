"""What travels between the notebook and its ranks: small values in one message, large ones through shared memory.

Arrays and CPU tensors of a large one are not copied into the pickle: they are written once to an unnamed file in
memory, and whoever reads it maps that file copy-on-write. The arguments of a call exist once for all its ranks.
"""

import ctypes
import io
import mmap
import os
import pickle
import socket
import sys
import tempfile

from . import pickling

SMALL = 1 << 15  # bytes up to which a buffer is copied into the pickle
INLINE = 1 << 16  # bytes of a pickle that go through the message itself
ALIGNED = 64  # bytes: where tensors begin


class SharedMessage:
    """A pickled value; `head` is sent in a message, and `file` (None for a small value) handed over after it.

    With `before`, bytes, it is always a file, which begins with them: the payload of fresh ranks.
    """

    def __init__(self, value, to_ranks=False, before=None):
        stream, buffers, self.file = io.BytesIO(), [], None

        def in_pickle(buffer):
            if buffer.raw().nbytes > SMALL:
                buffers.append(buffer.raw())
                return False
            return True

        # It keeps alive what the buffers lie in.
        pickler = _Pickler(stream, protocol=5, buffer_callback=in_pickle, to_ranks=to_ranks)
        pickler.dump(value)
        data = stream.getbuffer()
        if before is None and not buffers and len(data) <= INLINE:
            self.head = bytes(data)
            return
        has_memfd = hasattr(os, "memfd_create")
        self.file = os.fdopen(os.memfd_create("helpers"), "w+b") if has_memfd else tempfile.TemporaryFile()
        parts = [data, *buffers] if before is None else [memoryview(before), data, *buffers]
        self.head = [self._write(part) for part in parts]  # (where, how many bytes)
        self.file.flush()

    def _write(self, part):
        at = -(-self.file.tell() // ALIGNED) * ALIGNED
        self.file.seek(at)
        self.file.write(part)
        return at, part.nbytes

    def send(self, connection, *words):
        """Send (*words, head) through a Connection, and the file if there is one."""
        connection.send((*words, self.head))
        if self.file is not None:
            with socket.socket(fileno=os.dup(connection.fileno())) as raw:
                socket.send_fds(raw, [b"f"], [self.file.fileno()])

    def close(self):
        if self.file is not None:
            self.file.close()


def receive(connection, head, copy=False):
    """[pickle, *buffers] of a SharedMessage whose head has come.

    With `copy` they hold no file: a mapped one keeps a descriptor open for as long as the value lives.
    """
    if isinstance(head, bytes):
        return [head]
    with socket.socket(fileno=os.dup(connection.fileno())) as raw:
        _, fds, _, _ = socket.recv_fds(raw, 1, 1)
    if not copy:
        return mapped(fds[0], head)
    with open(fds[0], "rb", buffering=0) as file:
        whole = memoryview(bytearray(os.fstat(file.fileno()).st_size))
        at = file.seek(0)
        while at < len(whole):  # a read gives at most 2 GB
            at += file.readinto(whole[at:])
    return [whole[at : at + size] for at, size in head]


def mapped(fd, head):
    """The parts of an open file, which is closed."""
    try:
        whole = memoryview(mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE))
    finally:
        os.close(fd)
    return [whole[at : at + size] for at, size in head]


def opened(received):
    """The value; arrays and tensors in it lie in the mapped file."""
    data, *buffers = received
    return pickle.loads(data, buffers=buffers)


class _Pickler(pickling.Pickler):
    """Hands out the memory of CPU tensors instead of copying it."""

    def reducer_override(self, obj):
        storages = sys.modules.get("torch.storage")
        if storages is not None and type(obj) is storages.TypedStorage:
            return _typed, (obj._untyped_storage, obj.dtype)
        if storages is not None and type(obj) is storages.UntypedStorage and obj.device.type == "cpu":
            memory = (ctypes.c_char * obj.nbytes()).from_address(obj.data_ptr()) if obj.nbytes() else b""
            return _storage, (pickle.PickleBuffer(memory),)
        return super().reducer_override(obj)


def _storage(memory):
    import torch

    return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage() if len(memory) else torch.UntypedStorage(0)


def _typed(storage, dtype):
    import torch

    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)

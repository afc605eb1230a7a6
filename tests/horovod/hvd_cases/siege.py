"""A job that strangers besiege while its ranks meet and while they work; stories for `lost.play`.

The ranks of a story beyond `size` are the strangers: they know no secret, only where somebody listens.
"""

import os
import pickle
import random
import resource
import socket
import struct
import tempfile
import time
from pathlib import Path

import psutil


def listening(process):
    """(address, port) of each socket on which the process listens, without those of its mother."""
    ours, mothers = (
        {line.laddr for line in psutil.Process(pid).net_connections() if line.status == psutil.CONN_LISTEN}
        for pid in (process, os.getppid())
    )
    return ours - mothers


class Bomb:
    """Whoever unpickles it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def volleys(canary):
    """What strangers send: (bytes, whether they then wait in silence)."""
    draw = random.Random(1)
    bomb = pickle.dumps(Bomb(canary))
    nonce = b"n" * 16
    yield b"", True
    yield b"GET / HTTP/1.1\r\n\r\n", False
    yield nonce + struct.pack(">I", 2**32 - 1) + b"x" * 100000, False
    yield nonce + struct.pack(">I", 4096) + b"x" * 50, True
    yield nonce + struct.pack(">I", len(bomb)) + b"p" * 32 + bomb, False
    yield bomb * 20, False
    yield nonce + struct.pack(">I", 17) + bytes(32) + b'{"rank":1,"x":[]}', False
    for size in (1, 3, 16, 19, 20, 52, 300, 5000, 200000):
        yield draw.randbytes(size), size % 2 == 0


def storm(address, canary, times=4):
    """Send every volley some times; returns the connections that stay open in silence."""
    silent = []
    for _ in range(times):
        for data, waits in volleys(canary):
            try:
                line = socket.create_connection(address, timeout=1)
                line.sendall(data)
                silent.append(line) if waits else line.close()
            except OSError:
                pass  # shown the door
    return silent


def besieged(story, rank, tell):
    """Rank 0 waits for rank 1, which comes late, while a stranger storms the place where they meet."""
    import torch

    import platforms.horovod.torch as hvd

    folder, canary = Path(story["folder"]), str(Path(story["folder"], "canary"))
    tempfile.tempdir = str(folder)
    if rank == story["size"]:
        return _stranger(folder, canary, story["silent"])
    if rank > 0:
        _wait_for(folder / "stormed")
    (folder / f"pid{rank}").write_text(str(os.getpid()))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.monotonic()
    hvd.init()
    took = time.monotonic() - start
    totals = [hvd.allreduce(torch.full((1000,), 1.0), op=hvd.Sum)[0].item() for _ in range(50)]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    files = [str(path.relative_to(folder)) for path in folder.glob("helpers-hvd-*/*")]
    doors = [door.ip for door in listening(os.getpid())]
    hvd.shutdown()
    return {
        "totals": sorted(set(totals)),
        "grown": grown,
        "doors": doors,
        "took": took,
        "files": files,
        "canary": os.path.exists(canary),
    }


def _wait_for(path):
    while not path.exists():
        time.sleep(0.005)


def _notice(folder):
    """The file that tells where rank 0 waits, or None; a draft of it has a full stop in its name."""
    return next((path for path in folder.glob("helpers-hvd-*/*") if "." not in path.name), None)


def _stranger(folder, canary, silent):
    while (notice := _notice(folder)) is None:
        time.sleep(0.005)
    modes = [oct(path.stat().st_mode & 0o777) for path in (notice.parent, notice)]
    (address,) = listening(int((folder / "pid0").read_text()))
    kept = storm(address, canary)
    for _ in range(silent):
        try:
            kept.append(socket.create_connection(address, timeout=0.5))
        except OSError:
            break  # the line of those who wait to be let in is full
    (folder / "stormed").touch()
    time.sleep(0.5)
    return {"modes": modes, "address": address[0], "kept": len(kept)}


def killed_while_waiting(story, rank, tell):
    """The first rank dies before anybody came, and leaves its notice behind."""
    import signal
    import threading

    import platforms.horovod.torch as hvd

    tempfile.tempdir = story["folder"]

    def end():
        while _notice(Path(story["folder"])) is None:
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=end, daemon=True).start()
    hvd.init()


def meets_again(story, rank, tell):
    """The next job of the same parent finds the stale notice."""
    import torch

    import platforms.horovod.torch as hvd

    tempfile.tempdir = story["folder"]
    folder = Path(story["folder"])
    stale = len(list(folder.glob("helpers-hvd-*/*")))
    if rank > 0:
        (folder / "counted").touch()
    else:
        _wait_for(folder / "counted")
        time.sleep(0.2)  # in which the other one comes upon the stale notice
    hvd.init()
    return {"sum": hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist(), "stale": stale}


def open_folder(story, rank, tell):
    """The folder of the meeting is not this user's alone."""
    import platforms.horovod.torch as hvd

    from .lost import caught

    tempfile.tempdir = story["folder"]
    return caught(hvd.init)

"""A long and narrow link between two network namespaces (Linux, root), for kernels without `tc netem`.

Run as a process of its own (`helpers.cluster.twohosts` does): it makes a TUN device in each namespace and carries
the packets from one to the other, no more than so many bits a second and each of them late. Lines on its
standard input change rate and delay; when that closes, it ends and the devices are gone.
"""

import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

SET_INTERFACE = 0x400454CA  # TUNSETIFF
TUN, BARE = 0x0001, 0x1000  # IFF_TUN (packets without Ethernet), IFF_NO_PI (and without a header of the device's)
OWN_FOLDER = 0x200  # CLONE_FS
LARGEST = 65535  # bytes of a packet
EARLY = 5e-5  # s: a packet that is due so soon is sent at once


def enter(process, *kinds):
    """Move the calling thread into namespaces (kinds such as "net") of `process`. Raises PermissionError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if "mnt" in kinds:
        libc.unshare(OWN_FOLDER)  # a thread that shares its folder with others cannot change its mounts
    for kind in kinds:
        with open(f"/proc/{process}/ns/{kind}", "rb") as file:
            if libc.setns(file.fileno(), 0):
                raise PermissionError(f"not let into the {kind} namespace: {os.strerror(ctypes.get_errno())}")


def device(process, name):
    """A new TUN device in the network namespace of `process`; its descriptor reads and writes packets."""
    enter(process, "net")
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, SET_INTERFACE, struct.pack("16sH22x", name.encode(), TUN | BARE))
    return file


class Direction:
    """One direction of the link: packets leave when they are due."""

    def __init__(self, source, target):
        self.source, self.target = source, target
        self.waiting, self.free = deque(), 0.0

    def receive(self, rate, delay):
        """Take all packets that are there. rate: bytes a second or None; delay: seconds."""
        now = time.perf_counter()
        while True:
            try:
                packet = os.read(self.source, LARGEST)
            except BlockingIOError:
                return
            self.free = max(now, self.free) + (len(packet) / rate if rate else 0)
            self.waiting.append((self.free + delay, packet))

    def send(self):
        """Send what is due; seconds until the next packet is, None if none waits."""
        while self.waiting:
            left = self.waiting[0][0] - time.perf_counter()
            if left > EARLY:
                return left
            packet = self.waiting.popleft()[1]
            try:
                os.write(self.target, packet)
            except OSError:
                pass  # the far end is down or full: a real link loses such packets too
        return None


def main(name, *processes):
    """Carry packets between devices called `name` in the namespaces of two processes."""
    ends = [device(process, name) for process in processes]
    rate, delay, directions = None, 0.0, [Direction(*ends), Direction(*ends[::-1])]
    print("ready", flush=True)
    while True:
        due = [left for left in [each.send() for each in directions] if left is not None]
        ready = select.select([*ends, sys.stdin], [], [], min(due, default=None))[0]
        if sys.stdin in ready:
            line = sys.stdin.readline().split()  # megabits a second (0: no limit), milliseconds
            if not line:
                return
            rate, delay = float(line[0]) * 125e3 or None, float(line[1]) / 1e3
            print("ready", flush=True)
        for each in directions:
            if each.source in ready:
                each.receive(rate, delay)


if __name__ == "__main__":
    main(*sys.argv[1:])

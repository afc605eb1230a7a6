"""A long and narrow cable between two network namespaces (Linux, root).

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
        libc.unshare(OWN_FOLDER)  # no mounts of one's own as long as the folder is shared with other threads
    for kind in kinds:
        with open(f"/proc/{process}/ns/{kind}", "rb") as file:
            if libc.setns(file.fileno(), 0):
                raise PermissionError(f"not let into the {kind} namespace: {os.strerror(ctypes.get_errno())}")


def device(process, name):
    """A new TUN device in the network namespace of `process`; the descriptor gives and takes its packets."""
    enter(process, "net")
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, SET_INTERFACE, struct.pack("16sH22x", name.encode(), TUN | BARE))
    return file


class Line:
    """One direction: packets go in as they come and out when they are due."""

    def __init__(self, source, target):
        self.source, self.target = source, target
        self.waiting, self.free = deque(), 0.0

    def fill(self, rate, delay):
        """Take all packets that are there. rate: bytes a second or None; delay: seconds."""
        now = time.perf_counter()
        while True:
            try:
                packet = os.read(self.source, LARGEST)
            except BlockingIOError:
                return
            self.free = max(now, self.free) + (len(packet) / rate if rate else 0)
            self.waiting.append((self.free + delay, packet))

    def drain(self):
        """Hand over what is due; seconds until the next packet is, None if none waits."""
        while self.waiting:
            left = self.waiting[0][0] - time.perf_counter()
            if left > EARLY:
                return left
            packet = self.waiting.popleft()[1]
            try:
                os.write(self.target, packet)
            except OSError:
                pass  # the far end is down or full: a cable loses such packets too
        return None


def main(arguments):
    """Arguments: the device's name, a process of either namespace, megabits a second (0: any), milliseconds."""
    name, *processes = arguments[:3]
    ends = [device(process, name) for process in processes]
    rate, delay = settings(arguments[3:])
    lines = [Line(*ends), Line(*ends[::-1])]
    print("ready", flush=True)
    while True:
        due = [left for left in [line.drain() for line in lines] if left is not None]
        ready = select.select([*ends, sys.stdin], [], [], min(due, default=None))[0]
        if sys.stdin in ready:
            line = sys.stdin.readline()
            if not line:
                return
            rate, delay = settings(line.split())
            print("ready", flush=True)
        for line in lines:
            if line.source in ready:
                line.fill(rate, delay)


def settings(words):
    """(bytes a second or None, seconds) from megabits a second and milliseconds."""
    return float(words[0]) * 125e3 or None, float(words[1]) / 1e3


if __name__ == "__main__":
    main(sys.argv[1:])

"""Two hosts on one machine: network namespaces at the two ends of a link (Linux, root).

    with twohosts.two_hosts(rate=100, delay=2) as hosts:  # megabits a second, milliseconds one way
        answers = hosts.run(work, "argument", per_host=2)

Each has its own interfaces, addresses, ports, host name and file of host names, so torchrun, mpirun and
helpers treat them as two machines; processor, memory and folders are those of the one they are on. Connections
keep their pace when they have been idle (tcp_slow_start_after_idle 0), as in most clusters. Nothing of it is visible
outside, and all of it is gone when the block is left or the process that made it ends, in whatever way.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ..launcher.launch import launch
from . import link_emulator

NAMES, ADDRESSES, INTERFACE = ("host0", "host1"), ("10.77.0.1", "10.77.0.2"), "link0"
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])  # where Debian keeps ip and tc
TABLE = "127.0.0.1 localhost\n" + "".join(  # torch also looks for the name of an address written as IPv6
    f"{address} {name}\n::ffff:{address} {name}-6\n" for name, address in zip(NAMES, ADDRESSES, strict=True)
)
HOST = """
set -e
echo {name} > /proc/sys/kernel/hostname
mount --bind {file} /etc/hosts
ip link set lo up
echo 0 2> /dev/null > /proc/sys/net/ipv4/tcp_slow_start_after_idle || true
echo ready
exec cat
"""
_store = None  # in rank 0: the store that all ranks meet at, which lives as long as the rank


def why_not(delay=None):
    """None if two hosts can be made here (with a `delay`, if one is given), else the reason. Some milliseconds."""
    if sys.platform != "linux":
        return f"network namespaces are a part of Linux; this is {sys.platform}"
    missing = [name for name in ("ip", "tc", "unshare", "nsenter") if not shutil.which(name, path=PATH)]
    if missing:
        return f"{' and '.join(missing)} not found; install the packages iproute2 and util-linux"
    if os.geteuid() != 0:
        return "only root may make network namespaces; run this as root, in a container of its own if you like"
    trial = f"mount --bind /dev/null /etc/hosts && ip link add {INTERFACE} type veth peer name other"
    done = _run("unshare", "--net", "--uts", "--mount", "sh", "-c", trial)
    if done.returncode:
        return f"not permitted here: {(done.stderr.strip() or 'no reason given').splitlines()[-1]}"
    if delay is not None and not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "there is no /dev/net/tun here, so nothing can delay packets"
    return None


@contextmanager
def two_hosts(rate=None, delay=None):
    """Two hosts for as long as the block lasts; yields Hosts.

    Args:
        rate: megabits a second that the link carries each way (None: as many as the machine can).
        delay: milliseconds that a packet takes one way, so a round trip takes twice as long. With any number, 0 too,
            a process carries the packets (`link_emulator`); with None the kernel does, and limits the rate. Compare
            links of one kind only: they differ by some hundredths of a millisecond.

    Raises:
        ValueError: an impossible number. RuntimeError: it cannot be done here, see `why_not`.
    """
    _check(rate, delay)
    reason = why_not(delay)
    if reason:
        raise RuntimeError(f"no two hosts: {reason}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="helpers-hosts-")))
        (folder / "hosts").write_text(TABLE)
        keepers = []
        for name in NAMES:  # each ends with its standard input, so with this process at the latest
            script = HOST.format(name=name, file=shlex.quote(str(folder / "hosts")))
            keepers.append(_started(stack, ["unshare", "--net", "--uts", "--mount", "sh", "-c", script], name))
        yield Hosts(stack, [keeper.pid for keeper in keepers], folder, rate, delay)


def run(fn, *args, rate=None, delay=None, **options):
    """`Hosts.run` on two hosts made for this one call."""
    with two_hosts(rate, delay) as hosts:
        return hosts.run(fn, *args, **options)


class Hosts:
    """Two hosts at the ends of a link of `rate` and `delay`. Their processes see `names`, `addresses`, `interface`."""

    names, addresses, interface = NAMES, ADDRESSES, INTERFACE

    def __init__(self, stack, processes, folder, rate, delay):
        self.processes, self.folder, self.emulator = processes, folder, None
        if delay is None:
            peer = ("peer", "name", INTERFACE, "netns", str(processes[1]))
            self._on(0, "ip", "link", "add", INTERFACE, "type", "veth", *peer)
        else:
            command = [sys.executable, "-S", link_emulator.__file__, INTERFACE, *map(str, processes)]
            self.emulator = _started(stack, command, "the link")
        for host in (0, 1):
            self._on(host, "ip", "addr", "add", ADDRESSES[host], "peer", ADDRESSES[1 - host], "dev", INTERFACE)
            self._on(host, "ip", "link", "set", INTERFACE, "up")
        self.shape(rate, delay)

    def shape(self, rate=None, delay=None):
        """Change the link: `rate` in megabits a second, and `delay` in milliseconds if it was made with one."""
        _check(rate, delay)
        self.rate, self.delay = rate, delay
        if self.emulator:
            self.emulator.stdin.write(f"{rate or 0} {delay or 0}\n")
            _wait_until_ready(self.emulator, "the link")
        elif delay is not None:
            raise ValueError(f"delay is {delay}, and this link has none; make it with one, 0 at least")
        for host in (0, 1):
            if self.emulator:  # a packet should not hold the link for longer than about a millisecond
                size = max(1500, min(65000, int((rate or 1e3) * 125)))
                self._on(host, "ip", "link", "set", INTERFACE, "mtu", str(size))
            else:
                slow = f"rate {rate or 1e5}mbit burst 64kb latency 100ms"
                self._on(host, "tc", "qdisc", "replace", "dev", INTERFACE, "root", "tbf", *slow.split())

    def describe(self) -> str:
        """One line for people."""
        rate = f"{self.rate} Mbit/s" if self.rate else "any rate"
        return f"2 network namespaces, a link of {rate} ({'link emulator' if self.emulator else 'tc tbf'})"

    def cut(self):
        """Take the link down at the second host; no process is notified, as with a real cable."""
        self._on(1, "ip", "link", "set", INTERFACE, "down")

    def mend(self):
        """Take it up again."""
        self._on(1, "ip", "link", "set", INTERFACE, "up")

    def command(self, host, command):
        """`command` (a list) made to run on `host` (0 or 1), in the caller's folder."""
        into = ["nsenter", "--target", str(self.processes[host]), "--net", "--uts", "--mount", "--"]
        return [*into, "sh", "-c", 'cd "$0" && exec "$@"', os.getcwd(), *command]

    def run(self, fn, *args, per_host=1, threads=1, timeout=None, env=None, on_event=None, **kwargs):
        """Call `fn(*args, **kwargs)` on `per_host` ranks of each host, as `helpers.launch` does; their answers.

        Ranks see what torchrun's agents would set on two machines, and `helpers.distributed()` or
        init_process_group() brings them together over the link. They compute on the CPU, unless HELPERS_DEVICE
        in `env` says otherwise. Takes some 0.3 s.

        Raises:
            as `launch` does.
        """
        if isinstance(per_host, bool) or not isinstance(per_host, int) or per_host < 1:
            raise ValueError(f"per_host is {per_host!r}; give a whole number of ranks on each host, 1 or more")
        options = {"threads": threads, "timeout": timeout, "on_event": on_event}
        options["env"] = {"HELPERS_DEVICE": "cpu", **(env or {})}
        return launch(_on_its_host, 2 * per_host, self.processes, per_host, fn, args, kwargs, **options)

    def _on(self, host, *command):
        done = _run("nsenter", "--target", str(self.processes[host]), "--net", *command)
        if done.returncode:
            raise RuntimeError(f"on {NAMES[host]}, {' '.join(command)}: {done.stderr.strip()}")


def bytes_sent():
    """In a rank: what its host has sent over the link so far, with all headers."""
    for line in Path("/proc/thread-self/net/dev").read_text(encoding="ascii").splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == INTERFACE:
            return int(numbers.split()[8])
    raise RuntimeError(f"this process has no interface {INTERFACE}: is it on one of the two hosts?")


def _on_its_host(processes, per_host, fn, args, kwargs):
    """In a rank: move to its host, set the variables that torchrun's agent there would, call `fn`."""
    from torch.distributed import TCPStore

    global _store
    rank = int(os.environ["RANK"])
    host, local = divmod(rank, per_host)
    before = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)  # stays connected
    folder = os.getcwd()
    link_emulator.enter(processes[host], "mnt", "uts", "net")  # the first changes the folder to the root
    os.chdir(folder)
    if rank == 0:
        _store = TCPStore(ADDRESSES[0], 0, is_master=True, wait_for_workers=False)
        before.set("twohosts/port", str(_store.port))
    os.environ.update(
        LOCAL_RANK=str(local),
        LOCAL_WORLD_SIZE=str(per_host),
        GROUP_RANK=str(host),
        GROUP_WORLD_SIZE="2",
        MASTER_ADDR=ADDRESSES[0],
        MASTER_PORT=before.get("twohosts/port").decode(),
        GLOO_SOCKET_IFNAME=INTERFACE,
        NCCL_SOCKET_IFNAME=INTERFACE,
    )
    return fn(*args, **kwargs)


def _check(rate, delay):
    for name, value, unit, least in (("rate", rate, "megabits a second", 1e-3), ("delay", delay, "milliseconds", 0)):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value is not None and not (number and least <= value < 1e6):
            raise ValueError(f"{name} is {value!r}; give a positive number of {unit}, or None")


def _started(stack, command, name):
    """A process that says when it is ready, and ends with the stack."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    options = {"text": True, "bufsize": 1, "start_new_session": True, "env": {**os.environ, "PATH": PATH}}
    process = subprocess.Popen(command, **pipes, **options)
    stack.callback(_end, process)
    _wait_until_ready(process, name)
    return process


def _wait_until_ready(process, name):
    if process.stdout.readline() != "ready\n":
        raise RuntimeError(f"{name} could not be made: {process.stderr.read().strip()}")


def _end(process):
    for pipe in (process.stdin, process.stdout, process.stderr):
        try:
            pipe.close()
        except OSError:
            pass  # it is gone already
    process.kill()
    process.wait()


def _run(*command):
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": PATH})

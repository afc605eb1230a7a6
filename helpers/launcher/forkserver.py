"""A process that imported torch once and forks fresh ranks from that clean state.

It never runs an operator, never touches a device and stays single-threaded, so a fork of it
is safe whatever the notebook has done: trained a model, used DataLoader workers, held locks.

There are two generations. The first is ready as soon as torch is imported. It forks the second,
which goes on to import what training needs (the first optimizer alone pulls in the compiler,
about as much again as torch itself) while the first already serves; the notebook moves to the
second when that is ready. Both read runs from their own control socket.

Where fork is not safe (macOS) the same server starts ranks as new Python processes.
"""

import ctypes
import gc
import glob
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
from contextlib import contextmanager
from multiprocessing.connection import Connection

from .. import releases
from . import hugepages

FDS_OF_RANK = ("out", "err", "channel", "stacks")
FDS_OF_RUN = ("payload", "store")
READY = b"+"
RUN = b"R"

# What a rank that trains imports anyway; ordered so that what is needed most comes first.
SECOND_GENERATION = (
    "torch._dynamo",
    "torch.utils.data",
    "torchvision",
    "helpers.training.loop",
    "helpers.launcher.persistent.worker",
)


def main(argv):
    """Entry point: a JSON object with control fds, the notebook's pid and the start method."""
    order = json.loads(argv[1])
    controls = [socket.socket(fileno=fd) for fd in order["controls"]]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the notebook's stop button is not for us
    if order["method"] == "spawn":
        serve(controls[0], order["notebook"], _Spawner(order), spare=controls[1:])
    plugins = _import_torch()
    first = os.getpid()
    if os.fork() == 0:
        controls[0].close()
        with _dying_with(first):
            _import_rest()
            hugepages.gather()
        serve(controls[1], order["notebook"], _Forker(plugins))
    controls[1].close()
    serve(controls[0], order["notebook"], _Forker(plugins))


@contextmanager
def _dying_with(parent):
    """End when `parent` does, for as long as the block takes: it cannot listen to the notebook yet (Linux).

    Only so long, since a server with runs has files of theirs to remove first.
    """
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else lambda *_: None
    for last, sign in enumerate((signal.SIGKILL, 0)):
        prctl(1, sign)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(0)
        if not last:
            yield


def _import_torch():
    """Import torch without threads or devices; returns whether device plugins wait to be loaded."""
    gc.disable()  # importing makes many objects and no garbage: a fifth quicker without
    autoload = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD")
    os.environ.update(TORCH_DEVICE_BACKEND_AUTOLOAD="0", OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    from importlib.metadata import entry_points

    import cloudpickle  # noqa: F401
    import torch.distributed
    import torch.nn.parallel  # noqa: F401

    releases.check_gloo()
    _settle()
    return autoload != "0" and bool(entry_points(group="torch.backends"))


def _import_rest():
    import importlib

    for name in SECOND_GENERATION:
        try:
            importlib.import_module(name)
        except Exception:  # an optional part that is not installed or broken: ranks say so when they need it
            continue
    _settle()


def _settle():
    gc.collect()
    gc.freeze()  # keeps the collector of the ranks from copying the pages they share with us
    gc.enable()
    tasks = "/proc/self/task"
    count = len(os.listdir(tasks)) if os.path.isdir(tasks) else 1
    assert count == 1, f"the fork server must stay single-threaded, it has {count} threads"


class _Forker:
    """Starts a rank by forking this process."""

    def __init__(self, device_plugins):
        self.device_plugins = device_plugins

    def start(self, plan, rank, fds, everything):
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            signal.set_wakeup_fd(-1)
            for fd in everything - set(fds.values()):
                os.close(fd)
            from . import rank as this

            this.main({**plan, "parent": parent, "device_plugins": self.device_plugins}, rank, fds)
        finally:
            os._exit(1)


class _Spawner:
    """Starts a rank as a new Python process: slower, for systems where forking is not safe."""

    def __init__(self, order):
        self.path = order["path"]

    def start(self, plan, rank, fds, everything):
        import subprocess

        order = {"plan": {**plan, "parent": os.getpid(), "device_plugins": False}, "rank": rank, "fds": fds}
        code = (
            "import json, sys; order = json.loads(sys.argv[1]); sys.path[:] = json.loads(sys.argv[2]); "
            "from helpers.launcher import rank; rank.main(order['plan'], order['rank'], order['fds'])"
        )
        arguments = [sys.executable, "-c", code, json.dumps(order), json.dumps(self.path)]
        return subprocess.Popen(arguments, pass_fds=tuple(fds.values()), start_new_session=True).pid


class _Run:
    """One launch: the ranks that are still alive, and the line to the notebook about them."""

    def __init__(self, line):
        self.line = line
        self.ranks = {}  # pid -> rank
        # A rank that is killed cannot remove the sockets of its DataLoader workers, so they have a folder here.
        self.folder = tempfile.mkdtemp(prefix="helpers-ranks-")

    def clear(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        _remove_semaphores(os.path.basename(self.folder))

    def kill(self, signum, ranks=None):
        for pid, rank in self.ranks.items():
            if ranks is None or rank in ranks:
                try:
                    # To the rank alone at first; SIGKILL takes its DataLoader workers along.
                    (os.killpg if signum == signal.SIGKILL else os.kill)(pid, signum)
                except ProcessLookupError:  # not yet in its own session, or just gone
                    os.kill(pid, signum)


def _remove_semaphores(prefix):
    """Remove what ranks leave that were killed while they made a semaphore: two names of one file (Linux)."""
    for path in glob.glob(f"/dev/shm/sem.{prefix}-*"):
        try:
            inode = os.stat(path).st_ino
            for entry in os.scandir("/dev/shm"):
                if entry.inode() == inode:
                    os.unlink(entry.path)
        except OSError:  # a worker that still ends was quicker
            continue


def serve(control, notebook, starter, spare=()):
    """Start runs as the notebook asks, report exits, and leave when the notebook is gone."""
    runs = {}
    awake, wakeup = os.pipe()
    os.set_blocking(awake, False)
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    alive, parent = _life_line(notebook), os.getppid()
    own = {control.fileno(), awake, wakeup, *(s.fileno() for s in spare)} | ({alive} if alive else set())
    control.sendall(READY)
    while True:
        readable, _, _ = select.select([control, awake, *([alive] if alive else []), *runs], [], [], 1.0)
        if alive in readable or os.getppid() != parent:
            break
        if awake in readable:
            os.read(awake, 4096)
            _reap(runs)
        if control in readable and not _accept(control, runs, starter, own):
            break
        for line in [line for line in readable if line in runs]:
            _obey(runs, line)
    for run in runs.values():
        run.kill(signal.SIGKILL)
        run.clear()
    os._exit(0)


def _life_line(notebook):
    """A descriptor that becomes readable when the notebook's process ends, where the system has one.

    End-of-file on the control socket is not enough: a forked child of the notebook, such as a DataLoader
    worker, holds a copy of the other end.
    """
    try:
        return os.pidfd_open(notebook)
    except (AttributeError, OSError):
        return None


def _accept(control, runs, starter, own):
    """Take one run from the notebook; False when the notebook has closed the line."""
    word, fds, _, _ = socket.recv_fds(control, 1, 1)
    if not word:
        return False
    run = _Run(Connection(fds[0]))
    try:
        plan = run.line.recv()
        of_run = _receive_fds(run.line, FDS_OF_RUN)
        of_ranks = [_receive_fds(run.line, FDS_OF_RANK) for _ in range(plan["nprocs"])]
    except (EOFError, OSError):  # interrupted between two lines: nothing was started yet
        run.line.close()
        run.clear()
        return True
    plan["folder"] = run.folder
    lines = {line.fileno() for line in runs} | {run.line.fileno()}
    everything = own | lines | set(of_run.values()) | {fd for fds in of_ranks for fd in fds.values()}
    runs[run.line] = run
    for rank, fds in enumerate(of_ranks):
        run.ranks[starter.start(plan, rank, {**fds, **of_run}, everything)] = rank
    for fds in (of_run, *of_ranks):
        for fd in fds.values():
            os.close(fd)
    _tell(run, ("started", {rank: pid for pid, rank in run.ranks.items()}))
    return True


def _receive_fds(line, names):
    with socket.socket(fileno=os.dup(line.fileno())) as raw:
        word, fds, _, _ = socket.recv_fds(raw, 1, len(names))
    if not word:
        raise EOFError
    return dict(zip(names, fds, strict=True))


def _reap(runs):
    """Report ended ranks, and stop what they left behind while their number is still theirs."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None:
            return
        pid = ended.si_pid
        try:
            os.killpg(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for run in runs.values():
            if pid in run.ranks:
                rank = run.ranks.pop(pid)
                if not run.ranks:
                    run.clear()
                _tell(run, ("exit", rank, code))


def _obey(runs, line):
    """Do what the notebook says of a run: ("signal", number, ranks); end-of-file means kill it."""
    run = runs[line]
    try:
        _, signum, ranks = line.recv()
        run.kill(signum, ranks)
    except (EOFError, OSError):
        run.kill(signal.SIGKILL)
        del runs[line]
        line.close()


def _tell(run, message):
    try:
        run.line.send(message)
    except OSError:
        pass  # the notebook dropped the run; end-of-file on its line follows

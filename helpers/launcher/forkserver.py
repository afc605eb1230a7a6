"""A process that imported torch once and forks fresh ranks from that clean state.

It never runs an operator, never touches a device and stays single-threaded, so a fork of it
is safe whatever the notebook has done: trained a model, used DataLoader workers, held locks.

It serves as soon as torch is imported. What a training run needs besides (the first optimizer alone imports the
compiler, about as much again as torch) it imports while nothing runs, or at once when the notebook asks.

Where fork is not safe (macOS) the same server starts ranks as new Python processes.
"""

import ctypes
import gc
import glob
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from contextlib import suppress
from multiprocessing.connection import Connection

from . import shortage
from .engine import FDS_OF_RANK, FDS_OF_RUN, PREPARE, PREPARED, READY, RUN

MADV_COLLAPSE = 25
QUIET = 1.0  # s without a word from the notebook, after which the server imports the rest; a busy client is slow

# What a rank that trains imports; in parts, because a launch waits for the one that is being imported.
MODULES = ("sympy", "torch._dynamo", "torch.utils.data", "torchvision", "helpers.training.loop")


def main(order):
    """Serve the notebook; never returns.

    Args:
        order: {"control": a socket's descriptor, "notebook": its process id, "method": "fork" or "spawn",
            "path": sys.path of the ranks}.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the notebook's stop button is not for us
    control = socket.socket(fileno=order["control"])
    if order["method"] == "spawn":
        _Server(control, order["notebook"], _spawner(order["path"]), []).serve()
    _Server(control, order["notebook"], _forker(_import_torch()), list(MODULES)).serve()


def _import_torch():
    """Import torch without threads or devices; returns whether device plugins wait to be loaded."""
    gc.disable()  # importing makes many objects and no garbage: a fifth quicker without
    autoload = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD")
    os.environ.update(TORCH_DEVICE_BACKEND_AUTOLOAD="0", OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    from importlib.metadata import entry_points

    import cloudpickle  # noqa: F401
    import torch.distributed
    import torch.nn.parallel  # noqa: F401

    _settle()
    return autoload != "0" and bool(entry_points(group="torch.backends"))


def _settle():
    for one in list(weakref.finalize._registry):
        one.atexit = False  # what is ours does not end with a rank
    gc.collect()
    gc.freeze()  # keeps the collector of the ranks from copying the pages they share with us
    gc.enable()
    tasks = "/proc/self/task"
    count = len(os.listdir(tasks)) if os.path.isdir(tasks) else 1
    assert count == 1, f"the fork server must stay single-threaded, it has {count} threads"


def _use_huge_pages():
    """Gather our memory in pages of 2 MB: a fork copies an entry for each page, and is a third quicker (Linux 6.1)."""
    try:
        madvise = ctypes.CDLL(None).madvise
        with open("/proc/self/maps") as maps:
            for addresses, access, _, _, inode, *_ in map(str.split, maps.readlines()):
                if access == "rw-p" and inode == "0":  # private memory of no file
                    first, last = (int(address, 16) for address in addresses.split("-"))
                    madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), MADV_COLLAPSE)
    except (OSError, AttributeError):  # not Linux
        pass


def _forker(device_plugins):
    """A function that starts a rank by forking this process, and returns its process id."""

    def start(plan, rank, fds, unwanted):
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            signal.set_wakeup_fd(-1)
            for fd in unwanted:
                os.close(fd)
            from . import rank as this

            this.main({**plan, "parent": parent, "device_plugins": device_plugins}, rank, fds)
        finally:
            os._exit(1)

    return start


def _spawner(path):
    """The same with new Python processes: slower, for systems where forking is not safe."""

    def start(plan, rank, fds, _):
        order = {"plan": {**plan, "parent": os.getpid(), "device_plugins": False}, "rank": rank, "fds": fds}
        code = (
            "import json, sys; order = json.loads(sys.argv[1]); sys.path[:] = json.loads(sys.argv[2]); "
            "from helpers.launcher import rank; rank.main(**order)"
        )
        arguments = [sys.executable, "-c", code, json.dumps(order), json.dumps(path)]
        return subprocess.Popen(arguments, pass_fds=tuple(fds.values()), start_new_session=True).pid

    return start


class _Run:
    """One launch: the ranks that are still alive, and the line to the notebook about them."""

    def __init__(self, line):
        self.line = line
        self.ranks = {}  # pid -> rank
        # A rank that is killed cannot remove the sockets of its DataLoader workers, so they have a folder here.
        self.folder, self.began = tempfile.mkdtemp(prefix="helpers-ranks-"), time.time()

    def tell(self, *message):
        with suppress(OSError):  # the notebook dropped the run; end-of-file on its line follows
            self.line.send(message)

    def kill(self, signum, ranks=None):
        for pid, rank in self.ranks.items():
            if ranks is None or rank in ranks:
                try:
                    # To the rank alone at first; SIGKILL takes its DataLoader workers along.
                    (os.killpg if signum == signal.SIGKILL else os.kill)(pid, signum)
                except ProcessLookupError:  # not yet in its own session, or just gone
                    os.kill(pid, signum)

    def clear(self):
        """Remove what its ranks left: files, and the names of semaphores that a killed rank was making (Linux)."""
        shutil.rmtree(self.folder, ignore_errors=True)
        semaphores = glob.glob(f"/dev/shm/sem.{os.path.basename(self.folder)}-*")
        with suppress(OSError):  # a worker that still ends was quicker
            inodes = {os.stat(path).st_ino for path in semaphores}
            for entry in os.scandir("/dev/shm") if inodes else ():  # glibc gives each a second name first
                if entry.inode() in inodes:
                    os.unlink(entry.path)

    def unlink_batches(self, pid):
        """Remove what workers of an ended rank left of a batch for which there was no room (Linux)."""
        for path in glob.glob("/dev/shm/torch_*_*_*"):
            with suppress(OSError, ValueError):
                found, process = os.stat(path), int(path.split("_")[1])
                ours = not os.path.exists(f"/proc/{process}") or os.getpgid(process) == pid
                if ours and found.st_uid == os.getuid() and found.st_mtime > self.began:
                    os.unlink(path)


class _Server:
    """Starts runs as the notebook asks, reports exits, and leaves when the notebook is gone."""

    def __init__(self, control, notebook, start, modules):
        self.control, self.start, self.modules = control, start, modules
        self.runs = {}  # line -> _Run
        self.awake, wakeup = os.pipe()
        os.set_blocking(self.awake, False)
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.parent, self.watched = os.getppid(), [control.fileno(), self.awake]
        self.alive = None  # readable when the notebook ends; its forks, DataLoader workers, hold our line open
        with suppress(AttributeError, OSError):  # only Linux has it
            self.alive = os.pidfd_open(notebook)
            self.watched.append(self.alive)
        self.own = {*self.watched, wakeup}

    def serve(self):
        """Never returns."""
        self.control.sendall(READY if self.modules else READY + PREPARED)
        readable = [self.control]
        while True:
            imports = self.modules and not self.runs  # while runs go on, who waits for their end must not wait for us
            readable = select.select([*self.watched, *self.runs], [], [], 0 if imports and not readable else QUIET)[0]
            if self.alive in readable or os.getppid() != self.parent:
                break
            if self.awake in readable:
                os.read(self.awake, 4096)
                self._reap()
            if self.control.fileno() in readable and not self._obey():
                break
            for line in [line for line in readable if line in self.runs]:
                self._signal(self.runs[line])
            if imports and not readable:
                self._import_next()
        for run in self.runs.values():
            run.kill(signal.SIGKILL)
            run.clear()
        os._exit(0)

    def _import_next(self):
        gc.disable()
        with suppress(Exception):  # an optional part that is not installed or broken: ranks say so when they need it
            importlib.import_module(self.modules.pop(0))
        _settle()
        if not self.modules:
            _use_huge_pages()
            self.control.sendall(PREPARED)

    def _obey(self):
        """Do what the notebook asks; False when it has closed the line."""
        word, fds, _, _ = socket.recv_fds(self.control, 1, 1)
        if word == PREPARE:
            while self.modules:
                self._import_next()
        elif word == RUN:
            self._begin(_Run(Connection(fds[0])))
        return bool(word)

    def _begin(self, run):
        try:
            plan = run.line.recv()
            of_run = _receive_fds(run.line, FDS_OF_RUN)
            of_ranks = [_receive_fds(run.line, FDS_OF_RANK) for _ in range(plan["nprocs"])]
        except (EOFError, OSError):  # interrupted between two lines: nothing was started yet
            run.line.close()
            run.clear()
            return
        plan["folder"] = run.folder
        self.runs[run.line] = run
        ours = self.own.union(line.fileno() for line in self.runs)
        theirs = {*of_run.values(), *(fd for fds in of_ranks for fd in fds.values())}
        try:
            for rank, fds in enumerate(of_ranks):
                fds.update(of_run)
                run.ranks[self.start(plan, rank, fds, (ours | theirs) - set(fds.values()))] = rank
            run.tell("started", {rank: pid for pid, rank in run.ranks.items()}, "")
        except OSError as error:  # the system allows no more processes
            run.kill(signal.SIGKILL)
            run.tell("refused", str(shortage.explained(error)))
        for fd in theirs:
            os.close(fd)

    def _signal(self, run):
        """Send the signal that the notebook asks for, ("signal", number, ranks); end-of-file means kill."""
        try:
            _, signum, ranks = run.line.recv()
            run.kill(signum, ranks)
        except (EOFError, OSError):
            run.kill(signal.SIGKILL)
            del self.runs[run.line]
            run.line.close()

    def _reap(self):
        """Report ended ranks, and stop what they left behind before the process id can be used again."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            for run in self.runs.values():
                if pid in run.ranks:
                    rank = run.ranks.pop(pid)
                    run.unlink_batches(pid)
                    if not run.ranks:
                        run.clear()
                    run.tell("exit", rank, code)


def _receive_fds(line, names):
    with socket.socket(fileno=os.dup(line.fileno())) as raw:
        word, fds, _, _ = socket.recv_fds(raw, 1, len(names))
    if not word:
        raise EOFError
    return dict(zip(names, fds, strict=True))

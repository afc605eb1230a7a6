"""The notebook's side of the fork server: start it early, keep it, replace it when it is lost."""

import atexit
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection

from .. import releases
from . import context, forkserver, interpreter
from .errors import LauncherError

START_TIMEOUT = 120  # seconds; a cold disk can take most of a minute to deliver torch


def start_method() -> str:
    """ "fork" where it is safe, else "spawn"; the environment variable HELPERS_START_METHOD decides."""
    wanted = os.environ.get("HELPERS_START_METHOD")
    if wanted not in (None, "fork", "spawn"):
        raise ValueError(f"HELPERS_START_METHOD is {wanted!r}; it can be 'fork' or 'spawn'")
    return wanted or ("fork" if sys.platform == "linux" else "spawn")


class Server:
    """A running fork server under interpreter `python`, and the sockets to its two generations."""

    def __init__(self, method, python=None):
        if not hasattr(socket, "AF_UNIX") or sys.platform == "win32":
            raise LauncherError("launching ranks needs Linux or macOS; on Windows use WSL 2")
        self.method, self.owner = method, os.getpid()
        pairs = [socket.socketpair() for _ in range(2)]
        self.controls = [ours for ours, _ in pairs]
        self.ready, self.looking = [False, False], threading.Lock()
        order = {
            "controls": [theirs.fileno() for _, theirs in pairs],
            "notebook": os.getpid(),
            "method": method,
            "path": interpreter.import_path(python),
        }
        code = (
            "import json, sys; sys.path[:] = json.loads(sys.argv[1])['path']; "
            "from helpers.launcher import forkserver; forkserver.main(sys.argv)"
        )
        self.log = tempfile.TemporaryFile()
        unwanted = ("OMP_PROC_BIND", "KMP_AFFINITY") + (("PYTHONHOME",) if python else ())
        environment = {k: v for k, v in os.environ.items() if k not in unwanted}
        self.process = subprocess.Popen(
            [python or sys.executable, "-c", code, json.dumps(order)],
            pass_fds=order["controls"],
            start_new_session=True,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )
        for _, theirs in pairs:
            theirs.close()

    def open_run(self):
        """A line for one new run, from the best generation that is ready."""
        self.wait(generation=0)
        self._look(1, 0)
        control = self.controls[1 if self.ready[1] else 0]
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(control, [forkserver.RUN], [theirs.fileno()])
            except OSError:
                ours.close()
                raise self._lost() from None
        return Connection(ours.detach())

    def wait(self, generation):
        """Wait until a generation is ready. Raises LauncherError when it cannot get ready."""
        if generation == 1 and self.method == "spawn":
            generation = 0
        deadline = time.monotonic() + START_TIMEOUT
        while not self.ready[generation]:
            context.raise_if_stopped()
            if self._look(generation, 0.2):
                return
            if self.process.poll() is not None:
                raise self._lost()
            if time.monotonic() > deadline:
                raise LauncherError(f"the fork server was not ready after {START_TIMEOUT} s. {self._said()}")

    def _look(self, generation, timeout):
        control = self.controls[generation]
        with self.looking:  # two threads may launch at once, and only one of them can receive the byte
            if self.ready[generation] or not select.select([control], [], [], timeout)[0]:
                return self.ready[generation]
            try:
                self.ready[generation] = control.recv(1) == forkserver.READY
            except OSError:
                pass
        if not self.ready[generation] and generation == 0:
            raise self._lost()
        return self.ready[generation]

    def alive(self):
        return self.owner == os.getpid() and self.process.poll() is None

    def close(self):
        """End the server and what it runs."""
        for control in self.controls:
            control.close()
        self.log.close()
        if self.owner == os.getpid():  # a forked child must leave its parent's server alone
            self.process.kill()
            self.process.wait()

    def _lost(self):
        _, unfit, why = self._said().rpartition("UnfitTorch: ")  # the last line of its traceback
        if unfit:
            return releases.UnfitTorch(why)
        return LauncherError(f"the fork server ended unexpectedly; the next launch starts a new one. {self._said()}")

    def _said(self):
        self.log.seek(0)
        text = self.log.read().decode(errors="replace").strip()
        return f"Its last words:\n{text[-2000:]}" if text else "It left no message."


_servers = {}  # path of the interpreter, None for this process's own -> Server
_lock = threading.Lock()


def server(python=None):
    """The fork server of this process for `python` (as interpreter.checked returns it), started if need be."""
    method = start_method()
    with _lock:
        known = _servers.get(python)
        if known is not None and not (known.alive() and known.method == method):
            _servers.pop(python).close()
        if python not in _servers:
            _servers[python] = Server(method, python)
        return _servers[python]


@atexit.register
def _close():
    for server in _servers.values():
        server.close()

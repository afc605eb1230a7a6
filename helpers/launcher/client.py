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
from contextlib import suppress
from multiprocessing.connection import Connection

from . import context, forkserver, interpreter
from .errors import LauncherError

PATIENCE = 120  # seconds; a cold disk can take most of a minute to deliver torch


def start_method() -> str:
    """ "fork" where it is safe, else "spawn"; the environment variable HELPERS_START_METHOD decides."""
    wanted = os.environ.get("HELPERS_START_METHOD")
    if wanted not in (None, "fork", "spawn"):
        raise ValueError(f"HELPERS_START_METHOD is {wanted!r}; it can be 'fork' or 'spawn'")
    return wanted or ("fork" if sys.platform == "linux" else "spawn")


class Server:
    """A running fork server under interpreter `python`, and the socket to it."""

    def __init__(self, method, python=None):
        if not hasattr(socket, "AF_UNIX") or sys.platform == "win32":
            raise LauncherError("launching ranks needs Linux or macOS; on Windows use WSL 2")
        self.method, self.owner = method, os.getpid()
        self.said, self.listening = b"", threading.Lock()
        self.control, theirs = socket.socketpair()
        order = {
            "control": theirs.fileno(),
            "notebook": os.getpid(),
            "method": method,
            "path": interpreter.import_path(python),
        }
        code = (
            "import json, sys; order = json.loads(sys.argv[1]); sys.path[:] = order['path']; "
            "from helpers.launcher import forkserver; forkserver.main(order)"
        )
        self.log = tempfile.TemporaryFile()
        unwanted = ("OMP_PROC_BIND", "KMP_AFFINITY") + (("PYTHONHOME",) if python else ())
        with theirs:
            self.process = subprocess.Popen(
                [python or sys.executable, "-c", code, json.dumps(order)],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if name not in unwanted},
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=self.log,
            )

    def open_run(self):
        """A line for one new run."""
        self.wait()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self.control, [forkserver.RUN], [theirs.fileno()])
            except OSError:
                ours.close()
                raise self._lost() from None
        return Connection(ours.detach())

    def prepare(self):
        """Wait until the server has imported all that ranks need. Raises LauncherError when it cannot."""
        self.wait()
        if forkserver.PREPARED not in self.said:
            try:
                self.control.send(forkserver.PREPARE)
            except OSError:
                raise self._lost() from None
            self.wait(forkserver.PREPARED)

    def wait(self, word=forkserver.READY):
        """Wait until the server has said `word`. Raises LauncherError when it does not."""
        deadline = time.monotonic() + PATIENCE
        while word not in self.said:
            context.raise_if_stopped()
            with self.listening:  # two threads may launch at once, and only one of them can receive the word
                if word not in self.said and select.select([self.control], [], [], 0.2)[0]:
                    with suppress(OSError):  # it has ended
                        self.said += self.control.recv(2)
            if word not in self.said and self.process.poll() is not None:
                raise self._lost()
            if time.monotonic() > deadline:
                raise LauncherError(f"the fork server was not ready after {PATIENCE} s. {self._last_output()}")

    def alive(self):
        return self.owner == os.getpid() and self.process.poll() is None

    def close(self):
        """End the server and what it runs."""
        self.control.close()
        self.log.close()
        if self.owner == os.getpid():  # a forked child must leave its parent's server alone
            self.process.kill()
            self.process.wait()

    def _lost(self):
        found = "the fork server ended unexpectedly; the next launch starts a new one"
        return LauncherError(f"{found}. {self._last_output()}")

    def _last_output(self):
        self.log.seek(0)
        text = self.log.read().decode(errors="replace").strip()
        return f"Its last output:\n{text[-2000:]}" if text else "It left no message."


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

"""The notebook's side of the fork server: start it early, keep it, replace it when it is lost."""

import atexit
import json
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection

from . import context, engine, interpreter, shortage
from .errors import LauncherError

PATIENCE = 120  # seconds; a cold disk can take most of a minute to deliver torch
# Variables that Python, torch and its libraries read while they start: they need a server that starts with them.
EARLY = re.compile(
    "(PY)?TORCH|PYTHON|(ATEN|TRITON|KINETO|INDUCTOR|OMP|KMP|GOMP|MKL|OPENBLAS|ONEDNN|DNNL|LD|MALLOC|GLIBC)_"
)
# Those among them that ranks can still follow, that are read when they are needed, or that libraries set themselves.
LATE = re.compile(
    "TORCH_(DISTRIBUTED_DEBUG|HOME|NCCL_.*|FR_.*|DEVICE_BACKEND_AUTOLOAD)|TORCHELASTIC_.*|(TORCHINDUCTOR|TRITON)_CACHE_DIR"
    "|KMP_(DUPLICATE_LIB_OK|INIT_AT_FORK|AFFINITY)|OMP_PROC_BIND|(OMP|MKL)_NUM_THREADS"
    "|MALLOC_(TRIM_THRESHOLD|TOP_PAD|MMAP_THRESHOLD)_|PYTHON(PATH|HOME|DONTWRITEBYTECODE)"
)


def start_method() -> str:
    """ "fork" where it is safe, else "spawn"; the environment variable HELPERS_START_METHOD decides."""
    wanted = os.environ.get("HELPERS_START_METHOD")
    if wanted not in (None, "fork", "spawn"):
        raise ValueError(f"HELPERS_START_METHOD is {wanted!r}; it can be 'fork' or 'spawn'")
    return wanted or ("fork" if sys.platform == "linux" else "spawn")


@contextmanager
def _explained():
    try:
        yield
    except OSError as error:
        raise LauncherError(f"the fork server could not be started: {shortage.explained(error)}") from None


def early(environment) -> dict:
    """The variables that a rank cannot follow when its server has started already."""
    return {name: value for name, value in environment.items() if EARLY.match(name) and not LATE.fullmatch(name)}


class Server:
    """A running fork server under interpreter `python`, and the socket to it; `early` are variables that it needs."""

    def __init__(self, method, python=None, early=None):
        if not hasattr(socket, "AF_UNIX") or sys.platform == "win32":
            raise LauncherError("launching ranks needs Linux or macOS; on Windows use WSL 2")
        self.owner, self.runs = os.getpid(), []
        self.said, self.listening = b"", threading.Lock()
        self.control, theirs = socket.socketpair()
        order = {"control": theirs.fileno(), "notebook": os.getpid(), "method": method}
        order["path"] = interpreter.import_path(python)
        code = (
            "import json, sys; order = json.loads(sys.argv[1]); sys.path[:] = order['path']; "
            "from helpers.launcher import forkserver; forkserver.main(order)"
        )
        self.log = tempfile.TemporaryFile()
        unwanted = {"OMP_PROC_BIND", "KMP_AFFINITY"} | ({"PYTHONHOME"} if python else set())
        environment = {**os.environ, **(early or {})}
        with theirs, _explained():
            self.process = subprocess.Popen(
                [python or sys.executable, "-c", code, json.dumps(order)],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={name: value for name, value in environment.items() if name not in unwanted},
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
                socket.send_fds(self.control, [engine.RUN], [theirs.fileno()])
            except OSError:
                ours.close()
                raise self._lost() from None
        self.runs = [*filter(lambda line: not line.closed, self.runs), Connection(ours.detach())]
        return self.runs[-1]

    def prepare(self):
        """Wait until the server has imported all that ranks need. Raises LauncherError when it cannot."""
        self.wait()
        if engine.PREPARED not in self.said:
            try:
                self.control.send(engine.PREPARE)
            except OSError:
                raise self._lost() from None
            self.wait(engine.PREPARED)

    def wait(self, word=engine.READY):
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

    def idle(self):
        """Whether no run goes on in it."""
        return all(line.closed for line in self.runs)

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


_servers = {}  # (path of the interpreter, None for this process's own; method; early variables) -> Server
_lock = threading.Lock()


def server(python=None, environment=os.environ):
    """The fork server for `python` (as interpreter.checked returns it) and `environment`, started if need be.

    Of several for one interpreter those with runs stay, and the last that had one.
    """
    key = python, start_method(), tuple(sorted(early(environment).items()))
    with _lock:
        if key in _servers and not _servers[key].alive():
            _servers.pop(key).close()
        if key not in _servers:
            idle = [one for one in _servers if one[0] == python and _servers[one].idle()]
            for one in idle:
                if one != idle[-1] or not _servers[one].runs:
                    _servers.pop(one).close()
            _servers[key] = Server(key[1], python, dict(key[2]))
        _servers[key] = _servers.pop(key)  # the last that was used is at the end
        return _servers[key]


@atexit.register
def _close():
    for server in _servers.values():
        server.close()

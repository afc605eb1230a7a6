"""A real Jupyter kernel, started as JupyterLab starts it: its cells, its stop button, and what it leaves behind."""

import os
import re
import signal
import subprocess
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty

import jupyter_client
from jupyter_client.kernelspec import KernelSpec

from helpers import paths

ANSI = re.compile(r"\x1b\[[0-9;]*m")
# In the environment of all processes of a kernel; launchers that choose what they pass on take what begins so.
MARK = "PYTHON_OF_VISIT"
START = 60  # s


@dataclass
class Outcome:
    """What one cell showed. `seconds` and `shown` count from when the cell was sent."""

    text: str = ""  # printed, and results
    error: str = ""  # the exception with its traceback; "" when the cell passed
    seconds: float | None = None  # None: it had not ended when nobody wanted to wait any longer
    shown: float | None = None  # when it had ended, and had an error or the words waited for in it
    started: float = 0.0  # time.monotonic()


class Kernel:
    """One kernel of the interpreter `python`, with `folder` as its working directory."""

    def __init__(self, python, folder, environment=None):
        self.mark = uuid.uuid4().hex
        self.manager = jupyter_client.KernelManager()
        self.manager._kernel_spec = KernelSpec(
            argv=[python, "-m", "ipykernel_launcher", "-f", "{connection_file}"], language="python", display_name="peer"
        )
        beside = os.path.dirname(python)
        env = {
            **os.environ, "PYTHONPATH": str(paths.project_root()), "JPY_SESSION_NAME": "peers.ipynb", MARK: self.mark,
            "PATH": os.pathsep.join([beside, os.environ.get("PATH", "")]), "OMP_NUM_THREADS": "", **(environment or {}),
        }  # fmt: skip
        env = {name: value for name, value in env.items() if value != ""}
        self.manager.start_kernel(env=env, cwd=str(folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._pid = self.manager.provisioner.pid
        self.client = self.manager.client()
        self.client.start_channels()

    @property
    def pid(self):
        return self._pid

    def send(self, code):
        """Start a cell; returns its Outcome, still empty."""
        self.message = self.client.execute(code)
        return Outcome(started=time.monotonic())

    def finish(self, outcome, timeout, words=()):
        """Wait for the end of the cell, at most until `timeout` seconds after now; returns the outcome.

        Args:
            words: what has to be read in the cell for a failure to be shown in it, any of these regular expressions.
        """
        end = time.monotonic() + timeout
        while (left := end - time.monotonic()) > 0:
            try:
                message = self.client.get_iopub_msg(timeout=left)
            except Empty:
                break
            if message["parent_header"].get("msg_id") != self.message:
                continue
            now, kind, content = time.monotonic() - outcome.started, message["msg_type"], message["content"]
            if kind == "stream":
                outcome.text += content["text"]
            elif kind == "execute_result":
                outcome.text += content["data"]["text/plain"]
            elif kind == "error":
                outcome.error = ANSI.sub("", "\n".join(content["traceback"])) or content["ename"]
            idle = kind == "status" and content["execution_state"] == "idle"
            if idle:
                outcome.seconds = now
            tells = outcome.error or any(re.search(word, outcome.text) for word in words)
            if outcome.shown is None and outcome.seconds is not None and tells:
                outcome.shown = now
            if idle:
                break
        return outcome

    def late(self, outcome, words=(), timeout=0.2):
        """Take what arrives after the end of the cell; children of the kernel are not waited for."""
        end = time.monotonic() + timeout
        while (left := end - time.monotonic()) > 0:
            self.finish(outcome, left, words)

    def run(self, code, timeout=60):
        return self.finish(self.send(code), timeout)

    def interrupt(self):
        """What the stop button does."""
        self.manager.interrupt_kernel()

    def processes(self):
        """{pid} of all running processes that this kernel has started, wherever they hang now, itself left out."""
        return running(f"{MARK}={self.mark}") - {self.pid}

    def close(self, politely=True):
        """Shut the kernel down as "Shut Down Kernel" does, or kill it as the system does when memory runs out."""
        self.client.stop_channels()
        if not politely and self.manager.is_alive():
            os.kill(self.pid, signal.SIGKILL)
        self.manager.shutdown_kernel(now=not politely)


@contextmanager
def kernel(python, folder, environment=None):
    """A Kernel; whatever of it still runs after the block is ended."""
    here = Kernel(python, folder, environment)
    try:
        here.client.wait_for_ready(timeout=START)
        yield here
    finally:
        if here.manager.has_kernel:
            here.close(politely=False)
        end_all(running(f"{MARK}={here.mark}"))


def running(entry):
    """{pid} of the processes that were started with this "NAME=value" in their environment; zombies do not run."""
    wanted, found = entry.encode(), set()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (place / "environ").read_bytes().split(b"\0"):
                if (place / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                    found.add(int(place.name))
        except OSError:  # it has just ended, or is another user's
            continue
    return found


def end_all(pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue

"""A real Jupyter kernel, started as JupyterLab starts it: its cells, its stop button, and what it leaves running."""

import os
import re
import subprocess
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty

import jupyter_client
import psutil
from jupyter_client.kernelspec import KernelSpec

from helpers import paths

ANSI = re.compile(r"\x1b\[[0-9;]*m")
# In the environment of all processes of a kernel; launchers that choose what they pass on pass names that begin so.
MARK = "PYTHON_OF_KERNEL"


@dataclass
class Outcome:
    """What one cell showed. `seconds` and `shown` count from when the cell was sent."""

    text: str = ""  # printed, and results
    error: str = ""  # the exception with its traceback; "" when the cell passed
    seconds: float | None = None  # None: it had not ended within the time it was given
    shown: float | None = None  # when it had ended and showed an error, or one of the words waited for
    started: float = 0.0  # time.monotonic()


class Kernel:
    """One kernel of the interpreter `python`, with `folder` as its working directory. Use `kernel` to get one."""

    def __init__(self, python, folder):
        self.mark = uuid.uuid4().hex
        self.manager = jupyter_client.KernelManager()
        self.manager._kernel_spec = KernelSpec(
            argv=[python, "-m", "ipykernel_launcher", "-f", "{connection_file}"], language="python", display_name="peer"
        )
        env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        env |= {"PYTHONPATH": str(paths.project_root()), "JPY_SESSION_NAME": "peers.ipynb", MARK: self.mark}
        env["PATH"] = os.pathsep.join([os.path.dirname(python), env.get("PATH", "")])
        self.manager.start_kernel(env=env, cwd=str(folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.pid = self.manager.provisioner.pid
        self.client = self.manager.client()
        self.client.start_channels()

    def send(self, code):
        """Start a cell; returns its Outcome, still empty."""
        self.message = self.client.execute(code)
        return Outcome(started=time.monotonic())

    def finish(self, outcome, timeout, words=()):
        """Wait at most `timeout` seconds for the end of the cell; returns the outcome.

        Args:
            words: regular expressions, any of which means that a failure is shown in what the cell printed.
        """
        end = time.monotonic() + timeout
        while (left := end - time.monotonic()) > 0:
            try:
                message = self.client.get_iopub_msg(timeout=left)
            except Empty:
                break
            if message["parent_header"].get("msg_id") != self.message:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                outcome.text += content["text"]
            elif kind == "execute_result":
                outcome.text += content["data"]["text/plain"]
            elif kind == "error":
                outcome.error = ANSI.sub("", "\n".join(content["traceback"])) or content["ename"]
            idle = kind == "status" and content["execution_state"] == "idle"
            if idle:
                outcome.seconds = time.monotonic() - outcome.started
            shows = outcome.error or any(re.search(word, outcome.text) for word in words)
            if outcome.shown is None and outcome.seconds is not None and shows:
                outcome.shown = time.monotonic() - outcome.started
            if idle:
                break
        return outcome

    def run(self, code, timeout=60, words=()):
        return self.finish(self.send(code), timeout, words)

    def processes(self):
        """{pid} of the running processes that this kernel has started, wherever they hang now; itself left out."""
        return marked(self.mark) - {self.pid}

    def shut_down(self, politely=True):
        """As "Shut Down Kernel" does, or killed as by a system that has run out of memory."""
        self.client.stop_channels()
        if not politely and self.manager.is_alive():
            psutil.Process(self.pid).kill()
        self.manager.shutdown_kernel(now=not politely)


@contextmanager
def kernel(python, folder, start=60):
    """A Kernel that answers; whatever of it still runs after the block is ended."""
    here = Kernel(python, folder)
    try:
        here.client.wait_for_ready(timeout=start)
        yield here
    finally:
        if here.manager.has_kernel:
            here.shut_down(politely=False)
        for pid in marked(here.mark):
            try:
                psutil.Process(pid).kill()
            except psutil.Error:
                continue


def marked(mark):
    """{pid} of the running processes that were started with this MARK in their environment."""
    found = set()
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.add(process.pid)
        except (psutil.Error, OSError):  # it has just ended, or is another user's
            continue
    return found

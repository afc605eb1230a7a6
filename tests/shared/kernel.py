"""A real Jupyter kernel for tests: what a reader sees when a cell runs."""

import os
import re
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jupyter_client
import psutil

ROOT = Path(__file__).resolve().parents[2]
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Outcome:
    """What one cell showed, and how long it took."""

    stdout: str = ""
    stderr: str = ""
    displayed: str = ""  # the text of what is no stream
    result: str = ""
    error: str = ""  # name of the exception
    message: str = ""  # its text
    traceback: str = ""
    seconds: float = 0.0


class Kernel:
    def __init__(self, manager, client):
        self.manager, self.client = manager, client

    @property
    def pid(self):
        return self.manager.provisioner.pid

    def start_cell(self, code):
        self.message_id = self.client.execute(code)
        self.started = time.monotonic()

    def finish_cell(self, timeout=300, heard=lambda outcome: None):
        """The outcome of the cell; `heard` is called with what there is of it whenever the cell has printed."""
        outcome = Outcome()
        end = time.monotonic() + timeout
        while True:
            message = self.client.get_iopub_msg(timeout=max(0.1, end - time.monotonic()))
            if message["parent_header"].get("msg_id") != self.message_id:
                continue
            content, kind = message["content"], message["msg_type"]
            if kind == "stream":
                setattr(outcome, content["name"], getattr(outcome, content["name"]) + content["text"])
                heard(outcome)
            elif kind == "display_data":
                outcome.displayed += content["data"]["text/plain"]
            elif kind == "execute_result":
                outcome.result = content["data"]["text/plain"]
            elif kind == "error":
                outcome.error, outcome.message = content["ename"], content["evalue"]
                outcome.traceback = ANSI.sub("", "\n".join(content["traceback"]))
            elif kind == "status" and content["execution_state"] == "idle":
                outcome.seconds = time.monotonic() - self.started
                return outcome

    def run(self, code, timeout=300):
        self.start_cell(code)
        return self.finish_cell(timeout)

    def value(self, code, timeout=300):
        """The printed value of the cell; fails with the cell's traceback when there is an error."""
        outcome = self.run(code, timeout)
        assert not outcome.error, outcome.traceback
        return outcome.result or outcome.stdout.strip()

    def interrupt(self):
        self.manager.interrupt_kernel()


@contextmanager
def kernel(**environment):
    manager = jupyter_client.KernelManager(kernel_name="python3", transport="ipc", ip=tempfile.mktemp())
    env = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
    env.update(PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "tests" / "shared")]), **environment)
    manager.start_kernel(env=env, cwd=str(ROOT / "tests"))
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=180)
    try:
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        if manager.is_alive():
            manager.shutdown_kernel(now=True)


def descendants(pid):
    """Process ids below `pid`, the fork server's ranks and their children included."""
    try:
        return {child.pid for child in psutil.Process(pid).children(recursive=True)}
    except psutil.NoSuchProcess:
        return set()


def running(pid):
    """Whether a process runs (a zombie does not)."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition, seconds):
    """Seconds until `condition()` held, or None if it never did."""
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        if condition():
            return time.monotonic() - start
        time.sleep(0.01)
    return None

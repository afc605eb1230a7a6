"""A real Jupyter kernel, started as JupyterLab starts it: its cells, its stop button, and what it leaves running."""

import json
import os
import re
import subprocess
import time
import urllib.request
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty

import jupyter_client
import psutil
from jupyter_client.kernelspec import KernelSpec

from helpers import paths

ANSI = re.compile(r"\x1b\[[0-9;]*m")
# In the environment of all processes of a kernel; launchers that choose what they pass on pass names that begin so.
MARK = "PYTHON_OF_KERNEL"
START = 120  # s that a kernel or its server may take to answer


@dataclass
class Outcome:
    """What one cell showed. `seconds` and `shown` count from when the cell was sent."""

    text: str = ""  # printed, and results
    error: str = ""  # the exception with its traceback; "" when the cell passed
    seconds: float | None = None  # None: it had not ended within the time it was given
    shown: float | None = None  # when it had ended and showed an error, or one of the words waited for
    started: float = 0.0  # time.monotonic()


class Kernel:
    """One kernel of the interpreter `python`, working in `folder`; MARK is `mark`. Use `kernel` to get one.

    No cell is waited for beyond `deadline` (time.monotonic()), however long its own timeout is.
    """

    def __init__(self, python, folder, mark):
        self.mark, self.deadline = mark, float("inf")
        env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        env |= {"PYTHONPATH": str(paths.project_root()), "JPY_SESSION_NAME": "peers.ipynb", MARK: self.mark}
        env["PATH"] = os.pathsep.join([os.path.dirname(python), env.get("PATH", "")])
        self.start(python, folder, {"env": env, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL})
        self.client.start_channels()

    def start(self, python, folder, settings):
        """Start the process `pid` and make the client of the kernel; `settings` are those of subprocess.Popen."""
        self.manager = jupyter_client.KernelManager()
        self.manager._kernel_spec = KernelSpec(
            argv=[python, "-m", "ipykernel_launcher", "-f", "{connection_file}"], language="python", display_name="peer"
        )
        self.manager.start_kernel(cwd=str(folder), **settings)
        self.pid = self.manager.provisioner.pid
        self.client = self.manager.client()

    def send(self, code):
        """Start a cell; returns its Outcome, still empty."""
        self.message = self.client.execute(code)
        return Outcome(started=time.monotonic())

    def finish(self, outcome, timeout, words=()):
        """Wait at most `timeout` seconds for the end of the cell; returns the outcome.

        Args:
            words: regular expressions, any of which means that a failure is shown in what the cell printed.
        """
        end = min(time.monotonic() + timeout, self.deadline)
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
            elif kind in ("execute_result", "display_data", "update_display_data"):
                outcome.text += content["data"].get("text/plain", "")
            elif kind == "error":
                outcome.error = ANSI.sub("", "\n".join(content["traceback"])) or content["ename"]
            idle = kind == "status" and content["execution_state"] == "idle"
            if idle:
                outcome.seconds = time.monotonic() - outcome.started
                outcome.error = outcome.error or self._reply_error()
            shows = outcome.error or any(re.search(word, outcome.text) for word in words)
            if outcome.shown is None and outcome.seconds is not None and shows:
                outcome.shown = outcome.seconds if idle else time.monotonic() - outcome.started
            if idle:
                break
        return outcome

    def run(self, code, timeout=60, words=()):
        return self.finish(self.send(code), timeout, words)

    def processes(self):
        """{pid} of the running processes that this kernel has started, wherever they hang now; itself left out."""
        return marked(self.mark) - {self.pid}

    def _reply_error(self):
        """The error of a cell that fails without showing one below the cell: its reply stops "Run All"."""
        try:
            while (reply := self.client.get_shell_msg(timeout=1))["parent_header"].get("msg_id") != self.message:
                pass
        except Empty:
            return ""
        content = reply["content"]
        return f"{content['ename']}: {content['evalue']}" if content["status"] == "error" else ""

    def interrupt(self):
        """The stop button."""
        self.manager.interrupt_kernel()

    def shut_down(self, politely=True):
        """As "Shut Down Kernel" does, or killed as by a system that has run out of memory."""
        if self.manager.has_kernel:
            if not politely and self.manager.is_alive():
                psutil.Process(self.pid).kill()
            self.manager.shutdown_kernel(now=not politely)

    def end(self):
        """Leave nothing of the kernel; what it has started may go on."""
        self.client.stop_channels()
        self.shut_down(politely=False)


class ServedKernel(Kernel):
    """A kernel of a Jupyter server of its own, for an extension of the server. `pid` is that of the server."""

    def start(self, python, folder, settings):
        runtime = Path(folder, ".jupyter")
        settings["env"] |= {"JUPYTER_RUNTIME_DIR": str(runtime), "JUPYTER_CONFIG_DIR": str(runtime)}
        options = ["--no-browser", "--allow-root", "--ServerApp.port=0", f"--ServerApp.root_dir={folder}"]
        self.server = subprocess.Popen([python, "-m", "jupyter_server", *options], cwd=folder, **settings)
        self.pid, answers, end = self.server.pid, False, time.monotonic() + START
        while not answers:
            try:  # the file is there a moment before the server answers
                told = json.loads((runtime / f"jpserver-{self.pid}.json").read_text())
                self.url, self.token = told["url"], told["token"]
                answers = self.ask("GET", "api/status")
            except (OSError, ValueError):
                if self.server.poll() is not None or time.monotonic() > end:
                    raise
                time.sleep(0.1)
        self.id = self.ask("POST", "api/kernels", {"name": "python3"})["id"]
        self.client = jupyter_client.BlockingKernelClient(connection_file=str(runtime / f"kernel-{self.id}.json"))
        self.client.load_connection_file()
        self.client.hb_channel.time_to_dead = START  # on a busy machine a kernel that starts misses beats

    def ask(self, method, path, content=None):
        """What the server answers, as it would a browser."""
        request = urllib.request.Request(
            self.url + path,
            json.dumps(content).encode() if content else None,
            method=method,
            headers={"Authorization": f"token {self.token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=START) as answer:
            return json.loads(answer.read() or "null")

    def new_ranks(self, number):
        """Run each cell on so many new ranks: jupyter-distributed's field in the toolbar, or "Restart Kernel"."""
        ranks = f"jupyter-distributed/kernels/{self.id}"
        again = self.ask("GET", ranks)["world_size"] == number
        self.ask("POST", f"api/kernels/{self.id}/restart" if again else ranks, {"world_size": number})

    def interrupt(self):
        self.ask("POST", f"api/kernels/{self.id}/interrupt")

    def shut_down(self, politely=True):
        if politely:
            self.ask("DELETE", f"api/kernels/{self.id}")
        else:
            for process in psutil.Process(self.pid).children():
                process.kill()

    def end(self):
        self.client.stop_channels()
        self.server.kill()
        self.server.wait()


@contextmanager
def kernel(python, folder, served=False):
    """A Kernel that answers; whatever of it still runs after the block is ended."""
    mark, here = uuid.uuid4().hex, None
    try:
        here = (ServedKernel if served else Kernel)(python, folder, mark)
        here.client.wait_for_ready(timeout=START)
        yield here
    finally:
        if here:
            here.end()
        for pid in marked(mark):
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

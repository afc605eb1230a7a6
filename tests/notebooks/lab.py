"""A real JupyterLab for tests, on this machine only; it serves copies and keeps its settings in throw-away folders."""

import ctypes
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import nbformat
import psutil
from kernel import ROOT, descendants, running, wait_until

from tools.render_notebooks import METADATA

PATIENCE = 240  # s that anything may take on a machine that others keep busy
FOLDERS = (  # each is a variable and a folder of the lab's own
    *(f"JUPYTER_{kind}_DIR" for kind in ("CONFIG", "DATA", "RUNTIME")),
    *("JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR", "IPYTHONDIR", "HELPERS_RESULTS"),
)
SETTINGS = {"apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False}}  # no pop-ups


class Lab:
    """A running JupyterLab: its address, its folders, and what its server says of kernels."""

    def __init__(self, home):
        self.home, self.folder, self.results = home, home / "notebooks", home / "HELPERS_RESULTS"
        self.token = secrets.token_hex(16)
        for folder in (self.folder, self.results):
            folder.mkdir()

    def start(self):
        for name, values in SETTINGS.items():
            file = self.home / "JUPYTERLAB_SETTINGS_DIR" / "@jupyterlab" / f"{name}.jupyterlab-settings"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(values))
        self.url = ""  # a free port that is chosen here could be taken before the lab binds it
        options = [f"--ServerApp.root_dir={self.folder}", f"--IdentityProvider.token={self.token}"]
        with open(self.home / "lab.log", "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *"-m jupyterlab --no-browser --allow-root --ip=127.0.0.1 --port=0".split(), *options],
                env=self.environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_end_with_the_tests,
            )
        if not wait_until(self.answers, PATIENCE):
            raise RuntimeError(f"JupyterLab did not start:\n{(self.home / 'lab.log').read_text()[-3000:]}")

    def environment(self):
        # A kernel shows nothing of what its child processes print while the first of these is set; the others are for
        # notebooks that nobody looks at.
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTEST_CURRENT_TEST", "HELPERS_PROGRESS", "NBVAL")}
        return kept | {name: str(self.home / name) for name in FOLDERS} | {"PYTHONPATH": str(ROOT)}

    def answers(self):
        if self.process.poll() is not None:
            return False
        try:
            told = json.loads((self.home / "JUPYTER_RUNTIME_DIR" / f"jpserver-{self.process.pid}.json").read_text())
            self.url = f"http://127.0.0.1:{told['port']}"
            return bool(self.ask("api"))
        except (OSError, ValueError):
            time.sleep(0.1)
            return False

    def ask(self, path, method="GET"):
        """What the server answers on an address of its API."""
        request = urllib.request.Request(f"{self.url}/{path}", method=method)
        request.add_header("Authorization", f"token {self.token}")
        with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
            return json.loads(reply.read() or "null")

    def copy(self, name):
        """A notebook of the kit without its outputs, in the folder that the lab serves."""
        notebook = nbformat.read(ROOT / "notebooks" / name, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.update(outputs=[], execution_count=None)
        nbformat.write(notebook, self.folder / name)
        for folder in ("drawings", "scripts"):
            shutil.copytree(ROOT / "notebooks" / folder, self.folder / folder, dirs_exist_ok=True)

    def write(self, name, **cells):
        """A notebook with these code cells."""
        made = [nbformat.v4.new_code_cell(source, id=cell) for cell, source in cells.items()]
        nbformat.write(nbformat.v4.new_notebook(cells=made, metadata=METADATA), self.folder / name)

    def read(self, name):
        """The notebook as it is on disk; while the server saves it, the file is empty or cut."""
        for _ in range(100):
            try:
                return nbformat.read(self.folder / name, as_version=4)
            except (nbformat.reader.NotJSONError, FileNotFoundError):
                time.sleep(0.1)
        return nbformat.read(self.folder / name, as_version=4)

    def sessions(self, name):
        return [session for session in self.ask("api/sessions") if session["path"] == name]

    def ranks(self, name):
        """The process ids of the ranks that run for a notebook: each leads a session of its own."""
        (session,) = self.sessions(name)
        file = f"kernel-{session['kernel']['id']}.json"
        kernel = next(pid for pid in descendants(self.process.pid) if file in str(_ask(psutil.Process.cmdline, pid)))
        server = {child.pid for child in psutil.Process(kernel).children()}
        leads = lambda process: os.getsid(process.pid) == process.pid  # noqa: E731
        return {pid for pid in descendants(kernel) - server if running(pid) and _ask(leads, pid)}

    def shut_down(self, name):
        """End the kernel of a notebook, as the list of running kernels in the lab does."""
        for session in self.sessions(name):
            self.ask(f"api/sessions/{session['id']}", "DELETE")

    def records(self):
        """The records of runs, the oldest first."""
        files = sorted(self.results.glob("runs/*.json"), key=lambda file: file.stat().st_mtime)
        return [json.loads(file.read_text()) for file in files]


@contextmanager
def started():
    """A Lab that runs; nothing of it is left afterwards."""
    with tempfile.TemporaryDirectory(prefix="helpers-lab-", ignore_cleanup_errors=True) as home:
        lab = Lab(Path(home))
        try:
            lab.start()
            yield lab
        finally:
            family = {lab.process.pid, *descendants(lab.process.pid)}
            lab.process.terminate()  # it ends its kernels, and they what they started
            wait_until(lambda: lab.process.poll() is not None and not any(map(running, family)), 300)
            left = [pid for pid in family if running(pid)]
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            lab.process.wait()
    assert not left, f"still there when the lab had ended: {left}"


def _ask(of, pid):
    """What `of` gives for a process, or None where that is gone."""
    try:
        return of(psutil.Process(pid))
    except (ProcessLookupError, psutil.Error):
        return None


def _end_with_the_tests():
    """In the new process: the system is to end it when the tests are killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG, linux/prctl.h

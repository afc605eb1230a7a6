"""One kernel, driven from outside: it performs plans, is interrupted, its ranks are killed, and it is looked at."""

import json
import os
import queue
import secrets
import select
import shutil
import signal
import socket
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import jupyter_client

from . import held, judge
from .plans import Plan

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0  # s that one launch may take, the queue behind it included
CLEAN = 20.0  # s after which nothing of a launch may be left
CLEAN_AT_LAST = 60.0  # s after which nothing at all may be left


class Stuck(RuntimeError):
    """The kernel does not answer any more."""


@dataclass
class Launch:
    """What came of one plan."""

    plan: object
    seconds: float
    outcome: dict
    problems: list = field(default_factory=list)


class Driver:
    """A running kernel that performs plans. Use `started` to get one."""

    def __init__(self, manager, client, line, folder, mark):
        self.manager, self.client, self.line = manager, client, line
        self.folder, self.mark = folder, mark
        self.buffer = b""
        self.readings = []  # (number of the launch, held.memory)

    @property
    def pid(self):
        return self.manager.provisioner.pid

    def look(self):
        """Take what is held now as what may be held. To be called when nothing runs."""
        self.cell("gc.collect()")
        family = held.family(self.mark)
        roles = {self.pid: "kernel"}
        roles.update({pid: "fork server" for pid in family if pid != self.pid and held.parent(pid) in roles})
        self.place = held.Place(self.mark, roles, self.folder / "tmp", held.shared())
        self.before = held.snapshot(self.place)

    def warm_up(self):
        """Use everything once, so that what is made at first use is there before anything is counted."""
        self.look()
        usual = dict(rank=1, ranks=2)
        for plan in (
            Plan(0),
            Plan(0, ranks=4, extra="large"),
            Plan(0, extra="loader"),
            Plan(0, "exception", **usual),
            Plan(0, "hang", timeout=1.5, **usual),
            Plan(0, "interrupt", delay=0.3, linger=9.0, **usual),
            Plan(0, "persistent", how="exception", **usual),
            Plan(0, "persistent", how="sigkill", linger=9.0, **usual),
            Plan(0, background=True, queued=1),
            Plan(0, "stop", delay=0.3, linger=9.0, background=True, **usual),
        ):
            if problems := judge.problems(plan, self.perform(plan).outcome):
                raise Stuck(f"{plan} goes wrong before anything was planted: {'; '.join(problems)}")
        self.look()

    def perform(self, plan, read=False, plants=()) -> Launch:
        """One launch, its failure, what came of it and what is left of it.

        Args:
            read: take a reading of memory afterwards.
            plants: mistakes for `inside.sabotage`, in tests.

        Raises:
            Stuck: no answer; nothing can be said about the launches after this one.
        """
        began, interrupted = time.monotonic(), None
        self.start_cell(f"perform({ {**plan.as_dict(), 'read': read}!r}, {plants!r})")
        message = self.receive()
        if "go" in message:
            interrupted = self.disturb(plan)
            message = self.receive()
        outcome = message["outcome"]
        launch = Launch(plan, time.monotonic() - began, outcome, judge.problems(plan, outcome, interrupted))
        self.finish_cell()
        launch.problems += self.left_behind()
        if read:
            self.readings.append((plan.number, held.memory(self.place)))
        return launch

    def disturb(self, plan):
        """Interrupt the kernel or kill a rank, if that is planned; the moment of an interrupt."""
        if "interrupt" in (plan.kind, plan.how):
            time.sleep(plan.delay)
            self.manager.interrupt_kernel()
            return time.monotonic()
        if plan.kind == "sigkill" or (plan.kind, plan.how) == ("persistent", "sigkill"):
            self.kill_rank(plan)
        return None

    def kill_rank(self, plan):
        """SIGKILL to the planned rank, some time after it was forked: before, in or after its first lines."""
        end = time.monotonic() + PATIENCE
        while len(ranks := self.ranks()) <= plan.rank:
            if time.monotonic() > end or select.select([self.line], [], [], 0.002)[0]:
                return  # it failed otherwise, and the outcome will say so
        time.sleep(plan.delay)
        if held.parent(ranks[plan.rank]) in self.place.roles:
            os.kill(ranks[plan.rank], signal.SIGKILL)

    def ranks(self):
        """Ids of the running ranks in the order of their numbers, which is that of their start."""
        servers = [pid for pid, role in self.place.roles.items() if role == "fork server"]
        return [pid for server in servers for pid in held.children(server) if pid not in self.place.roles]

    def left_behind(self, at_last=False):
        """What is held that was not before, in words; each thing is told once."""
        now = held.settled(self.place, self.before, CLEAN_AT_LAST if at_last else CLEAN, slow=at_last)
        if now - self.before:
            now = held.without_strangers(now, self.mark)
        found = held.more(self.before, now)
        self.before |= now
        return found

    # -- cells and messages ----------------------------------------------------------------------

    def start_cell(self, code):
        self.message = self.client.execute(code, store_history=False)

    def finish_cell(self):
        """Wait until the kernel is idle; its output has to be read, or it would grow somewhere."""
        end, error = time.monotonic() + PATIENCE, ""
        try:
            while True:
                message = self.client.get_iopub_msg(timeout=max(0.1, end - time.monotonic()))
                if message["parent_header"].get("msg_id") != self.message:
                    continue
                if message["msg_type"] == "error":
                    error = f"{message['content']['ename']}: {message['content']['evalue']}"
                if message["content"].get("execution_state") == "idle":
                    break
            self.client.get_shell_msg(timeout=100)
        except queue.Empty:
            raise Stuck("the cell of the launch does not end") from None
        if error:
            raise Stuck(f"the harness failed in the kernel: {error}")

    def cell(self, code):
        self.start_cell(code)
        self.finish_cell()

    def receive(self):
        """The next message of the kernel: {"go": number} or {"outcome": …}."""
        end = time.monotonic() + PATIENCE
        while b"\n" not in self.buffer:
            if not select.select([self.line], [], [], max(0.0, end - time.monotonic()))[0]:
                raise Stuck(f"no answer within {PATIENCE:.0f} s. {self.stacks()}")
            data = self.line.recv(1 << 16)
            if not data:
                raise Stuck("the kernel has ended")
            self.buffer += data
        text, _, self.buffer = self.buffer.partition(b"\n")
        return json.loads(text)

    def stacks(self):
        """Where the threads of the kernel stand."""
        file = self.folder / "stacks"
        os.kill(self.pid, signal.SIGUSR2)
        time.sleep(1)
        return "Where the kernel's threads stood:\n" + file.read_text()


@contextmanager
def started(environment=None):
    """A kernel with the harness in it, all its files in a folder of its own; nothing of it is left afterwards.

    Raises:
        Stuck: the kernel does not get ready.
    """
    folder, mark = Path(tempfile.mkdtemp(prefix="soak-")), secrets.token_hex(8)
    manager = jupyter_client.KernelManager(kernel_name="python3")
    manager.connection_file = str(folder / "kernel.json")
    places = {"TMPDIR": "tmp", "HELPERS_RESULTS": "results", "IPYTHONDIR": "ipython"}
    for name in places.values():
        (folder / name).mkdir()
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    env.update({name: str(folder / place) for name, place in places.items()})
    env.update({held.MARK: mark, "PYTHONPATH": str(ROOT), **(environment or {})})
    try:
        with socket.socket(socket.AF_UNIX) as server, open(folder / "log", "w") as log:
            server.bind(str(folder / "line"))
            server.listen()
            manager.start_kernel(env=env, cwd=str(folder / "results"), stdout=log, stderr=log)
            client = manager.client()
            client.start_channels()
            try:
                yield _set_up(manager, client, server, folder, mark)
            finally:
                client.stop_channels()
    finally:
        (held.SHARED / f"soak-{mark}").unlink(missing_ok=True)  # a planted leak
        if manager.has_kernel:
            manager.shutdown_kernel(now=True)
        for pid in held.family(mark):
            _kill(pid)
        shutil.rmtree(folder, ignore_errors=True)


def _set_up(manager, client, server, folder, mark):
    """The driver of a kernel in which launches are as quick as they get and everything was used once."""
    client.wait_for_ready(timeout=180)
    driver = Driver(manager, client, None, folder, mark)
    driver.cell((Path(__file__).parent / "inside.py").read_text(encoding="utf-8"))
    driver.cell(
        f"import faulthandler; stacks = open({str(folder / 'stacks')!r}, 'w')\n"
        "faulthandler.register(signal.SIGUSR2, file=stacks)\n"
        f"connect({str(folder / 'line')!r}); helpers.prepare_launcher()"
    )
    server.settimeout(100)
    driver.line, _ = server.accept()
    return driver


def _kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass

"""Slurm as an engine of `launch`, through submitit: one job with one task a node, which runs `node.Node`.

    launch(fn, 4, on="slurm", nodes=2, partition="all", time=30)

What becomes of the ranks, and orders to them, are appended to files in a folder that the nodes share with the notebook:
no port of the notebook's machine needs to be open. The state of the job is scontrol's, which needs no accounting.
"""

import os
import pickle
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections import deque
from importlib.util import find_spec
from pathlib import Path

from ..language import N_, Message
from ..paths import project_root, replace_file, results_root
from . import node

POLL, STATE = 0.1, 1.0  # s between two looks at files, and at the job
LATE = 3.0  # s after the job's end in which the files of its nodes arrive here
END = 60.0  # s for a job and its processes to end; Slurm's KillWait is 30
QUEUED = {  # reasons of a job that waits
    "Resources": N_("its nodes are busy"),
    "Priority": N_("other jobs come first"),
    "None": N_("Slurm has not looked at it yet"),
}
NEVER = re.compile(
    "BadConstraints|Invalid(Account|QOS)|Partition(NodeLimit|TimeLimit|Inactive|Config)|DependencyNeverSatisfied"
    "|(Account|QOS)NotAllowed|JobHeld.*"
)
ENDS = {
    "TIMEOUT": "its job reached the time limit of {time} min; give it more by time=",
    "PREEMPTED": "a job of higher priority took its nodes; launch it again",
    "NODE_FAIL": "a node of its job failed; launch it again",
    "CANCELLED": "its job was cancelled",
    "OUT_OF_MEMORY": "its job used more memory than it had asked for",
}


def why_not() -> str:
    """Why there is no Slurm here, "" if there is."""
    if find_spec("submitit") is None:
        return "submitit is not installed; run `pip install submitit`"
    if not shutil.which("sbatch"):
        return "there is no sbatch; start the notebook on a login node of the cluster"
    found = _slurm("sinfo", "--noheader")
    return f"Slurm does not answer: {_last(found.stderr)}" if found.returncode else ""


class Engine:
    """The engine of one run.

    Args:
        nodes: how many; they share the ranks evenly. partition, account: the cluster's own if left out.
        time: minutes after which Slurm ends the job.
        gpus: of a node (default: one a rank in a partition with GPUs). cores: of a rank.
        setup: a shell command, or a list, that each node runs first, such as "module load cuda".
        folder: one that all nodes see, for the files of the run (default: in the folder of results).
    """

    def __init__(self, nodes=1, partition=None, account=None, time=60, gpus=None, cores=1, setup=(), folder=None):
        self.nodes, self.partition, self.account, self.time = nodes, partition, account, time
        self.gpus, self.cores, self.setup = gpus, cores, [setup] if isinstance(setup, str) else list(setup)
        self.place = Path(folder or results_root() / "slurm").absolute()
        for name, value in (("time", time), ("cores", cores)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}; give a whole number, 1 or more")
        self.job, self.folder, self.watch = None, None, None
        self.queue, self.left, self.heard, self.looked, self.ended = deque(), set(), False, 0.0, None

    def check(self, nprocs):
        """Raise ValueError where Slurm would not take the job, or nodes would not find the folders."""
        if why := why_not():
            raise ValueError(f"on='slurm' cannot be used here: {why}")
        self.plans = node.layout(nprocs, self.nodes)
        found = [line.split("|") for line in _slurm("sinfo", "--noheader", "--format=%R|%G|%n").stdout.splitlines()]
        names = sorted({name for name, *_ in found})
        if self.partition and self.partition not in names:
            raise ValueError(f"there is no partition {self.partition!r}; the cluster has {', '.join(names)}")
        mine = [row for row in found if self.partition in (None, row[0])]
        if self.gpus is None:
            self.gpus = nprocs // self.nodes if any("gpu" in gres for _, gres, _ in mine) else 0
        if {name for *_, name in mine} != {socket.gethostname()}:
            for path in (os.getcwd(), self.place):
                if why := node.not_shared(path):
                    raise ValueError(f"the nodes would not see it: {why}; start the notebook in a shared folder")
        options = [f"--{name.replace('_', '-')}={value}" for name, value in self._options().items()]
        tried = _slurm("sbatch", "--test-only", "--wrap=true", *options)
        if tried.returncode:
            raise ValueError(f"Slurm refuses the job: {_last(tried.stderr)} (asked for {' '.join(options)})")

    def _options(self):
        given = {"time": self.time, "partition": self.partition, "account": self.account, "gpus_per_node": self.gpus}
        each = {"ntasks_per_node": 1, "cpus_per_task": self.cores * self.plans[0]["nprocs"]}
        return {"nodes": self.nodes, **each, **{name: value for name, value in given.items() if value}}

    def start(self, nprocs, message):
        """Write the payload, and put the job into the queue."""
        import submitit

        self.left = set(range(nprocs))
        self.folder = self.place / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"
        self.folder.mkdir(mode=0o700, parents=True)
        message.file.seek(0)
        with open(self.folder / "payload", "wb") as file:
            shutil.copyfileobj(message.file, file)
        (self.folder / "job").write_bytes(pickle.dumps((self.plans, message.head, self.cores)))
        self.inboxes = [node.Inbox(self.folder / f"from-{number}") for number in range(self.nodes)]
        self.orders = node.Outbox(self.folder / "orders")
        executor = submitit.AutoExecutor(self.folder / "logs", cluster="slurm")
        options = {f"slurm_{name}": value for name, value in self._options().items()}
        kit = f"export PYTHONPATH={shlex.quote(str(project_root()))}:$PYTHONPATH"
        executor.update_parameters(name="helpers", stderr_to_stdout=True, slurm_setup=[kit, *self.setup], **options)
        self.job = executor.submit(serve, str(self.folder)).job_id
        # Nothing of the job outlives the notebook, however it ends.
        script = f"while kill -0 {os.getpid()}; do sleep 0.5; done; exec scancel --quiet {self.job}"
        quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        self.watch = subprocess.Popen(["sh", "-c", script], start_new_session=True, **quiet)

    def events(self, timeout):
        end = time.monotonic() + timeout
        self._look()
        while not self.queue and (left := end - time.monotonic()) > 0:
            time.sleep(min(POLL, left))
            self._look()
        while self.queue:
            yield self.queue.popleft()

    def _look(self):
        events = [event for inbox in self.inboxes for event in inbox.read()]
        if events and not self.heard:
            self.heard = True
            self._say_where()
        for kind, about, *rest in events:
            if kind == "refused" and (why := self._end_in_words()):  # the job's end has taken the node's fork server
                self._lose(why)
                continue
            if kind == "exit":
                rest[-1] = self._end_in_words() if (rest[0] or 0) < 0 else ""
                self.left.discard(about)
            self.queue.append((kind, about, *rest))
        if self.left and not events and time.monotonic() - self.looked > STATE:
            self._look_at_job()

    def _look_at_job(self):
        self.looked, job = time.monotonic(), self._state()
        state, why = job["JobState"], job["Reason"]
        if state == "PENDING" and NEVER.fullmatch(why):
            hint = "give another partition= or account=, fewer nodes= or a shorter time="
            self.queue.append(("refused", f"Slurm job {self.job} can never start ({why}): {hint}"))
        elif state == "PENDING":
            text = Message("Slurm job {job} is queued: {why}", job=self.job, why=Message(QUEUED.get(why, why)))
            self.queue.append(("waiting", text))
        elif state == "RUNNING" and not self.heard:
            self._say_where(job)
        elif state not in ("RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED"):
            self.ended = self.ended or time.monotonic()
            if time.monotonic() - self.ended > LATE:
                self._lose(self._end_in_words(job) or f"its job ended before it. {self._log()}")

    def _say_where(self, job=None):
        nodes = (job or self._state())["NodeList"]
        self.queue.append(("started", {}, Message("Slurm job {job} on {nodes}", job=self.job, nodes=nodes)))

    def _lose(self, why):
        self.queue.extend(("exit", rank, None, why) for rank in sorted(self.left))
        self.left.clear()

    def _state(self):
        found = dict.fromkeys(("JobState", "Reason", "NodeList"), "None")
        text = _slurm("scontrol", "show", "job", "--oneliner", self.job).stdout
        return {**found, **dict(re.findall(r"(\w+)=(\S+)", text))}

    def _end_in_words(self, job=None):
        job, end = job or self._state(), time.monotonic() + END
        while job["JobState"] == "COMPLETING" and time.monotonic() < end:  # it does not say yet what ended it
            time.sleep(POLL)
            job = self._state()
        state = "TIMEOUT" if job["Reason"] == "TimeLimit" else job["JobState"]
        return ENDS.get(state, "").format(time=self.time)

    def _log(self):
        texts = [path.read_text(errors="replace").strip() for path in (self.folder / "logs").glob("*_log.out")]
        return "The last output of its nodes:\n" + "\n".join(text[-800:] for text in texts if text)

    def signal(self, number, ranks):
        """Through the nodes; a job that has not begun is cancelled."""
        if self.heard:
            self.orders.send(("signal", int(number), set(ranks)))
        else:
            _slurm("scancel", self.job)
            self._lose("its job was cancelled")

    def tell(self, rank, *message):
        self.orders.send(("tell", rank, *message))

    def close(self):
        """Take the job from the queue, if it is still there, and remove its files."""
        if self.job is not None:
            end = time.monotonic() + END
            if self.left:
                _slurm("scancel", self.job)
            while time.monotonic() < end and self._state()["JobState"] in ("PENDING", "RUNNING", "SUSPENDED"):
                time.sleep(POLL)
            _slurm("scancel", "--quiet", self.job)
        if self.watch:
            self.watch.kill()
            self.watch.wait()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def serve(folder):
    """On a node: run its ranks, from the first to the last word."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # which submitit has Slurm send some time before the end
    folder, number = Path(folder), int(os.environ["SLURM_NODEID"])
    out, orders = node.Outbox(folder / f"from-{number}"), node.Inbox(folder / "orders")
    try:
        plans, head, threads = pickle.loads((folder / "job").read_bytes())
        store, meeting = None, folder / "address"
        if number == 0:
            store = node.listen()
            replace_file(meeting, f"{node.address(os.environ.get('SLURMD_NODENAME'))} {store.getsockname()[1]}")
        address, port = node.text_of(meeting).split()
        with open(folder / "payload", "rb") as file:
            plan = {**plans[number], "address": address, "port": int(port), "threads": threads}
            here = node.Node(number, plan, head, file, store)
    except Exception as error:
        out.send(("refused", f"{socket.gethostname()}: {error}"))
        raise
    left = plans[number]["nprocs"]
    while left:
        events = here.step(orders.read(), POLL)
        out.send(*events)
        left -= sum(kind == "exit" for kind, *_ in events)


def _slurm(*command):
    return subprocess.run(command, capture_output=True, text=True)


def _last(text):
    return text.strip().rpartition("\n")[2] or "it says nothing"

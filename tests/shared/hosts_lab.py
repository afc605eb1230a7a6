"""Two hosts with torchrun's agents on them, quick enough for tests.

Agents are given the very words that `helpers.cluster` prints. They run in ranks of `helpers.launch`, which have
torch imported already, and fork the ranks of the training, so that these have it too; all else about them is
torchrun's. What a cold start adds, test_two_hosts.py pays for once.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kernel import ROOT, descendants, wait_until

from helpers import launch
from helpers.cluster import commands, twohosts

TRAIN = "--steps 12 --global-batch 32 --device cpu --threads 1 --log-every 1 --model silu_mlp --data digits"
QUICK = (
    "--rdzv-conf=join_timeout={wait},last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=6,read_timeout=60"
)


def words(pair, train=TRAIN, per_host=1, **settings):
    """For each host, what is printed for it, as words: (variables, those of torchrun and of the training)."""
    settings = dict(folder="", interface=pair.interface, environment={}, **settings)
    text = commands.commands(train, nnodes=2, nproc_per_node=per_host, hosts=pair.names, **settings)["torchrun"]
    lines = [shlex.split(line) for line in text.splitlines() if not line.startswith("#")]
    return [
        (dict(w.split("=", 1) for w in line if w[0].isupper()), line[line.index("helpers.cluster.torchrun") + 1 :])
        for line in lines
    ]


class Agents:
    """Agents on the hosts of `pair`, as context manager; `plan` says what befalls the ranks (see `_befall`)."""

    def __init__(self, pair, told, folders, plan=None, wait=100):
        self.pair, self.told, self.folders, self.plan, self.wait = pair, told, folders, plan or {}, wait
        self.plan.setdefault("notes", str(folders[0]))

    def __enter__(self):
        self.pool = ThreadPoolExecutor(4)
        return self

    def __exit__(self, *error):
        for host in (0, 1):
            self.kill(host)
        self.pool.shutdown()

    def start(self, *numbers):
        """Start the agents of these hosts; for each a future of (exit status, what it said at last)."""
        return [self.pool.submit(self._run, host) for host in numbers]

    def _run(self, host):
        variables, told = self.told[host]
        env = {**variables, "HELPERS_RESULTS": str(self.folders[host]), "HELPERS_DEVICE": "cpu"}
        place = (self.pair.processes[host], host, [*told], self.plan, self.wait)
        return launch(_agent, 1, *place, threads=1, env=env, timeout=900)[0]

    def kill(self, host):
        """Kill the newest agent of a host, if it has one; nobody is told."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int(Path(self.plan["notes"], f"agent{host}").read_text()), signal.SIGKILL)

    def cut(self):
        """Cut the cable while a rank waits at the step of its note; the ranks that there are, by process id."""
        wait_until(Path(self.plan["notes"], "there").exists, 300)
        ranks = set().union(*(descendants(int(Path(self.plan["notes"], f"agent{n}").read_text())) for n in (0, 1)))
        self.pair.cut()
        Path(self.plan["notes"], "go").touch()
        return ranks


def _agent(process, host, told, plan, wait):
    """In a process of the launcher: be the agent of a host."""
    from torch.distributed import run

    from helpers.cluster import link_emulator, torchrun

    link_emulator.enter(process, "mnt", "uts", "net")
    os.chdir(ROOT)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name)
    Path(plan["notes"], f"agent{host}").write_text(str(os.getpid()))
    from_words = run.config_from_args

    def forking(options):
        config, _, arguments = from_words(options)
        config.start_method = "fork"
        return config, _rank, [plan, *arguments[arguments.index("train") :]]

    run.config_from_args = forking
    with open(Path(plan["notes"], f"said{host}"), "w+", encoding="utf-8") as said:
        with contextlib.redirect_stderr(said):
            status = torchrun.main([QUICK.format(wait=wait), *told])
        said.seek(0)
        return status, said.read()


def _rank(plan, *arguments):
    """A rank of the training; the plan's misfortunes befall the first attempt only."""
    from helpers import __main__ as cli
    from helpers.launcher import rank
    from helpers.training.loop import Run

    rank.channel = None  # that is the agent's
    step, attempt = Run._timed_step, int(os.environ["HELPERS_ROUND"])

    def watched(self, batches):
        step(self, batches)
        if attempt == 0:
            _befall(plan, self.world.rank, self.step)

    Run._timed_step = watched
    status = cli.main(list(arguments))
    if status:
        sys.exit(status)


def _befall(plan, rank, step):
    if plan.get("note") == [rank, step]:
        Path(plan["notes"], "there").touch()
        wait_until(Path(plan["notes"], "go").exists, 300)
    if plan.get("dies") == [rank, step]:
        os.kill(os.getpid(), signal.SIGKILL)
    if plan.get("agent dies") == [rank, step]:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)  # it ends with its agent, which takes a moment


def mpirun_here(pair):
    """Variables for mpirun between the hosts of `pair`, as root."""
    yes = dict(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    return {"OMPI_MCA_plm_rsh_agent": _remote_shell(pair), **yes}


def _remote_shell(pair):
    """A file that stands in for ssh between the hosts of `pair`."""
    cases = "\n".join(
        f'{name}|{address}) exec {shlex.join(pair.command(host, ["sh", "-c"]))} "$*" ;;'
        for host, (name, address) in enumerate(zip(twohosts.NAMES, twohosts.ADDRESSES, strict=True))
    )
    skip = 'while [ "${1#-}" != "$1" ]; do shift; done\nhost=$1; shift\n'
    file = pair.folder / "rsh"
    file.write_text(f'#!/bin/sh\n{skip}case "$host" in\n{cases}\n*) echo "unknown host $host" >&2; exit 1 ;;\nesac\n')
    file.chmod(0o700)
    return str(file)


def in_shell(pair, host, text, **variables):
    """A bash on a host of `pair` that reads `text`."""
    environment = {k: v for k, v in os.environ.items() if k not in ("HELPERS_RESULTS", "PYTHONPATH")}
    return subprocess.Popen(
        pair.command(host, ["bash", "-c", text]),
        env={**environment, **variables},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def records(folder):
    """All records below a folder of results."""
    return [json.loads(path.read_text()) for path in sorted(Path(folder).glob("runs/*.json"))]


def losses(record):
    return record["measured"]["samples"]["loss"]

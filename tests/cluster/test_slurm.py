"""`launch(…, on="slurm")` on a real Slurm: a controller and two node daemons on this machine, on loopback."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest
import torch
import torch.distributed as dist

import helpers
from helpers import LauncherError, RankError, RankTimeout, launch
from helpers.cluster import engines

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
REASONS = {
    "submitit is not installed": find_spec("submitit") is None,
    "needs root": os.geteuid() != 0,
    "Slurm is not installed (apt-get install slurm-wlm munge)": not all(map(shutil.which, PROGRAMS)),
}
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(any(REASONS.values()), reason=", ".join(why for why, holds in REASONS.items() if holds)),
]
CONF = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldPort={port}
ReturnToService=2
MpiDefault=none
OverTimeLimit=0
KillWait=2
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=1 RealMemory=1000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=1 RealMemory=1000
PartitionName=all Nodes=n1,n2 Default=YES State=UP MaxTime=60
PartitionName=closed Nodes=n1 State=DOWN MaxTime=60
"""


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool-n1", "spool-n2"):
        (folder / name).mkdir()
    host, (port, first, second) = socket.gethostname(), free_ports(3)
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(host=host, folder=folder, port=port, first=first, second=second))
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o400)
    files = {"key-file": "key", "socket": "munge.socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    options = [f"--{option}={folder / name}" for option, name in files.items()]
    environment = {**os.environ, "SLURM_CONF": str(conf)}
    commands = [["munged", "--foreground", "--force", *options], ["slurmctld", "-D", "-c"]]
    commands += [["slurmd", "-D", "-N", name] for name in ("n1", "n2")]
    processes = []
    for command in commands:
        with open(folder / f"{len(processes)}.out", "w") as out:
            processes.append(subprocess.Popen(command, env=environment, stdout=out, stderr=out))
        time.sleep(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(conf))
        end = time.monotonic() + 60
        while "idle" not in (said := slurm("sinfo", "--noheader", "--partition=all", "--format=%T")):
            assert time.monotonic() < end, said
            time.sleep(0.5)
        yield
    for process in reversed(processes):
        process.terminate()
        process.wait(60)


@pytest.fixture(autouse=True)
def nothing_is_left(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("HELPERS_RESULTS", str(tmp_path))
    yield
    assert slurm("squeue", "--noheader", "--states=PENDING,RUNNING") == ""
    assert not list(tmp_path.glob("slurm/*"))


def slurm(*command):
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def hang():
    print("here")
    time.sleep(600)


def test_ranks_on_two_nodes_are_one_world(capsys):
    def total(more):
        with helpers.distributed() as world:
            value = torch.ones(1) * (world.rank + 1)
            dist.all_reduce(value)
            print("on node", os.environ["SLURM_NODEID"])
            helpers.emit("seen")
            return value.item() + more, torch.zeros(100_000), len(world.hosts)

    events = []
    assert engines()["slurm"] == ""
    made = launch(total, 2, 5, on="slurm", nodes=2, partition="all", time=10, on_event=events.append)
    assert [(value, tensor.sum().item(), hosts) for value, tensor, hosts in made] == [(8.0, 0.0, 2)] * 2
    assert sorted(event["rank"] for event in events) == [0, 1]
    out = capsys.readouterr().out
    assert "[rank 0] on node 0" in out and "[rank 1] on node 1" in out


def test_what_fails_is_named_and_the_rest_is_stopped():
    def fail():
        with helpers.distributed() as world:
            if world.rank == 1:
                raise ValueError("one")
            dist.barrier()

    with pytest.raises(RankError, match="rank 1 failed; the other ranks were stopped") as caught:
        launch(fail, 2, on="slurm", nodes=2)
    assert 'raise ValueError("one")' in caught.value.traceback

    def end():
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)

    with pytest.raises(RankError, match="rank 1 was killed by signal SIGKILL"):
        launch(end, 2, on="slurm", nodes=2)
    with pytest.raises(RankTimeout) as caught:
        launch(hang, 2, on="slurm", nodes=2, timeout=3)
    assert all("in hang" in caught.value.stacks[rank] for rank in range(2))


def stopped_when(said, action):
    """The error of a run, and the seconds that its end took after `action(run)`, called when its row says `said`."""
    run = launch(hang, 2, on="slurm", nodes=2, background=True)
    end = time.monotonic() + 300
    while not re.search(said, f"{run.progress.row and run.progress.row.where} {run.logs()}"):
        assert time.monotonic() < end and run.status in ("queued", "running"), run.result()
        time.sleep(0.05)
    began = time.monotonic()
    action(run)
    try:
        run.result(120)
    except Exception as error:
        return error, time.monotonic() - began


def test_stop_cancels_a_job_that_runs_and_one_that_waits():
    error, _ = stopped_when(r"\[rank 1\] here", lambda run: run.stop())
    assert isinstance(error, helpers.RunStopped)
    holder = re.search(r"\d+", slurm("sbatch", "--nodes=2", "--output=/dev/null", "--wrap=sleep 600"))[0]
    while "RUNNING" not in slurm("squeue", "--noheader", "--format=%T"):
        time.sleep(0.2)
    try:
        error, _ = stopped_when("is queued: its nodes are busy|is queued: other jobs", lambda run: run.stop())
    finally:
        slurm("scancel", holder)
        while slurm("squeue", "--noheader"):
            time.sleep(0.2)
    assert isinstance(error, helpers.RunStopped)


def test_what_ends_a_job_from_outside_is_said_in_words():
    def cancel(run):
        slurm("scancel", re.search(r"job (\d+)", run.progress.row.where)[1])

    error, _ = stopped_when(r"\[rank 1\] here", cancel)
    assert isinstance(error, RankError) and "its job was cancelled" in str(error)
    with pytest.raises(RankError, match="its job reached the time limit of 1 min; give it more by time="):
        launch(hang, 2, on="slurm", nodes=2, time=1)


def test_a_killed_notebook_leaves_no_job():
    code = "import time\nfrom helpers import launch\nlaunch(time.sleep, 2, 600, on='slurm', nodes=2)"
    process = subprocess.Popen([sys.executable, "-c", code])
    while not slurm("squeue", "--noheader", "--states=RUNNING"):
        assert process.poll() is None
        time.sleep(0.2)
    process.kill()
    process.wait()
    end = time.monotonic() + 60
    while slurm("squeue", "--noheader", "--states=RUNNING,PENDING") and time.monotonic() < end:
        time.sleep(0.2)
    for path in helpers.paths.results_root().glob("slurm/*"):
        shutil.rmtree(path)  # nobody is there to remove them


def test_what_slurm_would_never_run_is_refused(tmp_path):
    for options, message in (
        (dict(partition="gpu"), "there is no partition 'gpu'; the cluster has all, closed"),
        (dict(nodes=4), "Slurm refuses the job: .*node"),
        (dict(nodes=2, cores=8), "Slurm refuses the job: .*node configuration is not available"),
        (dict(time=1000), "Slurm refuses the job|can never start"),
    ):
        with pytest.raises((ValueError, LauncherError), match=message):
            launch(hang, 4, on="slurm", **options)

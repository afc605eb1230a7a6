"""`launch(…, on="slurm")` on a real Slurm: a controller and two node daemons on this machine, on loopback."""

import os
import re
import shutil
import time

import clusters
import faults
import pytest
import torch
import torch.distributed as dist
from clusters import MISSING
from clusters import ask as slurm

import helpers
from helpers import LauncherError, RankError, launch
from helpers.cluster import engines

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(MISSING["slurm"]), reason=MISSING["slurm"] or "none")]
NODES = {"on": "slurm", "nodes": 2}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with clusters.slurm(tmp_path_factory.mktemp("slurm")):
        yield


@pytest.fixture(autouse=True)
def nothing_is_left(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("HELPERS_RESULTS", str(tmp_path))
    yield
    assert slurm("squeue", "--noheader", "--states=PENDING,RUNNING") == ""
    assert not list(tmp_path.glob("slurm/*"))


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


@pytest.mark.parametrize("fault", faults.FAULTS)
def test_a_fault(fault):
    faults.error_of(fault, **NODES)


def stopped_when(said, action):
    """The error of a run, and the seconds that its end took after `action(run)`, called when its row says `said`."""
    run = launch(faults.hang, 2, background=True, **NODES)
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
        launch(faults.hang, 2, time=1, **NODES)


def test_a_killed_notebook_leaves_no_job():
    faults.kill_notebook(**NODES)
    faults.until(lambda: not slurm("squeue", "--noheader", "--states=RUNNING,PENDING"))
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
            launch(faults.hang, 4, on="slurm", **options)

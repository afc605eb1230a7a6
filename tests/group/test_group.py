"""`helpers.distributed()` and `train` under every launcher."""

import json
import os
import shutil
import subprocess
import sys
import textwrap

import pytest
import torch.distributed as dist
from kernel import ROOT

import helpers
from helpers import launch

SCRIPT = textwrap.dedent(
    """
    import json, os, sys, torch, torch.distributed as dist, helpers
    def work():
        with helpers.distributed("cpu") as world:
            t = torch.tensor([float(world.rank + 1)])
            dist.all_reduce(t)
            return [world.rank, world.size, world.local_rank, t.item()]
    assert work() == (answer := work()), "the second group must not meet the first"
    assert not dist.is_initialized()
    open(os.path.join(sys.argv[1], str(answer[0])), "w").write(json.dumps(answer))
    """
)
STARTERS = {
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"],
    "mpirun": ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"],
    "srun": ["srun", "--nodes=1", "--ntasks=2", "--overcommit"],
    "nobody": [],
}


def run(starter, arguments, tmp_path):
    tmp_path.mkdir(exist_ok=True)
    if starter == "srun" and ("SLURM_CONF" not in os.environ or shutil.which("srun") is None):
        pytest.skip("there is no Slurm (SLURM_CONF)")
    if starter == "mpirun" and shutil.which("mpirun") is None:
        pytest.skip("Open MPI's mpirun is not installed (Debian: openmpi-bin)")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    env.update(HELPERS_RESULTS=str(tmp_path), TMPDIR=str(tmp_path))
    command = STARTERS[starter] + ([sys.executable] if starter != "torchrun" else []) + arguments
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=1800, cwd=ROOT)


@pytest.mark.parametrize(
    "starter", ["torchrun", *(pytest.param(name, marks=pytest.mark.long) for name in ("mpirun", "srun"))]
)
def test_the_same_function_under_every_starter(starter, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = run(starter, [str(script), str(tmp_path)], tmp_path)
    assert done.returncode == 0, done.stderr
    answers = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(2)]
    assert not list(tmp_path.glob("helpers-*")), "the ranks' meeting file was left behind"
    assert answers == [[rank, 2, rank, 3.0] for rank in range(2)]


def test_nobody_starts_a_world_of_one():
    for _ in range(2):
        with helpers.distributed("cpu") as world:
            assert (world.rank, world.size, world.local_rank) == (0, 1, 0) and dist.is_initialized()
        assert not dist.is_initialized()


TRAIN = ["-m", "helpers", "train", "--batch_size", "32", "--amp_level", "O0", "--steps=12", "--device", "cpu"]


def trained(starter, tmp_path, extra=()):
    done = run(starter, [*TRAIN, *extra], tmp_path / starter)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / starter / "runs").glob("*.json")
    record = json.loads(path.read_text())
    assert record["status"] == "completed" and record["config"]["strategy"] == "ddp"
    assert record["measured"]["world_size"] == 2 and record["measured"]["evaluation"]["count"] == 360
    assert record["run_id"] in done.stdout
    return record["measured"]["samples"]["loss"]


@pytest.mark.long
def test_train_gives_the_same_losses_however_it_is_started(tmp_path):
    ours = trained("nobody", tmp_path, ["--nproc_per_node", "2"])
    assert trained("torchrun", tmp_path) == pytest.approx(ours, rel=1e-6)
    assert trained("mpirun", tmp_path) == pytest.approx(ours, rel=1e-6)


@pytest.mark.long
def test_resuming_a_finished_run_says_that_nothing_is_left(tmp_path):
    options = ["--checkpoint-dir", str(tmp_path / "saved"), "--checkpoint-every", "6"]
    assert run("nobody", [*TRAIN, *options], tmp_path).returncode == 0
    done = run("nobody", [*TRAIN, *options, "--resume"], tmp_path)
    assert done.returncode == 0 and "nothing left to train" in done.stdout, done.stderr


def test_half_a_launcher_is_noticed(monkeypatch):
    from helpers.group.process_group import place

    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ValueError, match="RANK set but not LOCAL_RANK, WORLD_SIZE"):
        place()


SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "1"}
TASKS = {"SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_TASKS_PER_NODE": "1,2"}
OTHERS = {"SLURM_NTASKS": "3", "SLURM_TASKS_PER_NODE": "1,2"}


@pytest.mark.parametrize(
    "variables, place, here",
    [
        ({**SLURM, **TASKS, "SLURM_PROCID": "2", "SLURM_LOCALID": "1"}, (2, 3, 1), 2),
        ({**SLURM, **TASKS, "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, (1, 2, 1), 2),  # torchrun in a task
        ({**SLURM, **OTHERS}, (0, 1, 0), 1),  # a batch script
        ({**SLURM, **OTHERS, "SLURM_STEP_NUM_TASKS": "1"}, (0, 1, 0), 1),  # srun --pty bash, batchspawner
        ({"SLURM_JOB_ID": "7", **OTHERS}, (0, 1, 0), 1),  # salloc
    ],
)
def test_tasks_of_srun_are_ranks_and_what_else_is_in_an_allocation_is_not(monkeypatch, variables, place, here):
    from helpers.group import process_group, rendezvous

    for name in [name for name in os.environ if name.startswith(("SLURM_", "OMPI_"))]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert process_group.place() == place and rendezvous.local_size(place[1]) == here


@pytest.mark.parametrize("hosts, first", [("n[07-12,20],m1", "n07"), ("a,b", "a"), ("r[1-2]n[3-4]", "r1n3")])
def test_tasks_of_srun_meet_on_the_first_host(monkeypatch, hosts, first):
    from helpers.group import rendezvous

    for name, value in {**SLURM, "SLURM_STEP_NODELIST": hosts}.items():
        monkeypatch.setenv(name, value)
    assert rendezvous._slurm_job()[1] == [first]


def test_groups_follow_each_other_and_a_model_may_outlive_its_group():
    def leaves():
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        sums = []
        for _ in range(5):
            with helpers.distributed("cpu") as world:
                model = DistributedDataParallel(torch.nn.Linear(4, 1))
                model(torch.ones(2, 4)).sum().backward()
                value = torch.ones(1)
                dist.all_reduce(value)
                sums.append(value.item())
            assert not dist.is_initialized()
            del model  # lets go of the group after all others
        return world.size, sums

    assert launch(leaves, 2, threads=1, timeout=300) == [(2, [2.0] * 5)] * 2

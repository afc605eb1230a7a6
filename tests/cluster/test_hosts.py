"""What `python -m helpers cluster` prints: right in every shell, and refused where it cannot be; no host is needed."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from helpers import RunConfig
from helpers import __main__ as cli
from helpers.cluster import commands as hosts
from helpers.cluster import twohosts
from helpers.training import checkpoint

ODD = 'it\'s "so", $HOME & `id`; *\\ é'
STUB = """#!{python}
import json, os, sys
open({notes!r}, "a").write(json.dumps([sys.argv, os.getcwd(), dict(os.environ)]) + "\\n")
"""


def commands(train="--batch_size 32", **settings):
    return hosts.commands(train, **{"nnodes": 2, "nproc_per_node": 4, "hosts": ["a", "b"], "folder": "", **settings})


def stub(tmp_path, *names):
    """Programs of these names that only write down how they were called; (folder, what they wrote)."""
    folder, notes = tmp_path / "it's bin", tmp_path / "notes"
    folder.mkdir()
    for name in names:
        (folder / name).write_text(STUB.format(python=sys.executable, notes=str(notes)))
        (folder / name).chmod(0o700)
    return folder, lambda: [json.loads(line) for line in notes.read_text().splitlines()]


def in_bash(text, folder, **variables):
    path = f"{folder}:{os.environ['PATH']}"
    done = subprocess.run(["bash", "-euc", text], env={"PATH": path, **variables}, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr


AGENT = "-m helpers.cluster.torchrun --nnodes=2 --nproc-per-node=4 --max-restarts=3 --rdzv-backend=c10d".split()
SLURM = "job-name=helpers nodes=2 ntasks-per-node=1 cpus-per-task=4 gpus-per-node=4 time=1-00:30:00".split()


@pytest.fixture
def odd(tmp_path):
    """Settings full of odd names, and what comes of them in the programs of the hosts."""
    folder, calls = stub(tmp_path, "python " + ODD.replace("/", ""), "mpirun", "srun")
    (place := tmp_path / ODD).mkdir()
    train = ["train", "--checkpoint_dir", ODD, "--checkpoint-every=5", "--batch_size", "8"]
    python = str(next(p for p in folder.iterdir() if p.name.startswith("python")))
    settings = {"train": train, "environment": {"HELPERS_RESULTS": ODD}, "folder": str(place), "python": python}
    return settings | {"max_restarts": 3, "rdzv_id": "run-1"}, folder, calls, place


def test_torchrun_gets_every_word_as_it_was_given(odd):
    settings, folder, calls, place = odd
    in_bash(commands(**settings)["torchrun"], folder)
    made = calls()
    assert len(made) == 2
    for name, (words, where, environment) in zip("ab", made, strict=True):
        assert words[0] == settings["python"] and words[-6:] == settings["train"]
        meet = ["--rdzv-endpoint=a:29400", "--rdzv-id=run-1", f"--local-addr={name}"]
        assert words[1:12] == [*AGENT, *meet, "-m", "helpers"]
        assert where == str(place) and environment["HELPERS_RESULTS"] == ODD


def test_mpirun_gets_every_word_as_it_was_given(odd, tmp_path):
    settings, folder, calls, place = odd
    in_bash(f"cd {shlex.quote(str(tmp_path))}\n{commands(**settings)['mpirun']}", folder)
    ((words, _, _),) = calls()
    assert words[1:9] == ["-np", "8", "-npernode", "4", "-hostfile", "hostfile", "--bind-to", "none"]
    assert words[9:11] == ["--wdir", str(place)]
    assert words[-9:] == [settings["python"], "-m", "helpers", *settings["train"]]
    passed = [words[n + 1] for n, word in enumerate(words) if word == "-x"]
    assert {f"HELPERS_RESULTS={ODD}", "MASTER_ADDR=a", "MASTER_PORT=29500", "OMP_NUM_THREADS=1"} == set(passed)
    assert (tmp_path / "hostfile").read_text() == "a slots=4\nb slots=4\n"


def test_srun_gets_every_word_as_it_was_given(odd, tmp_path):
    settings, folder, calls, place = odd
    (folder / "scontrol").write_text("#!/bin/sh\n[ \"$*\" = 'show hostnames n[7-8]' ] && printf 'n7\\nn8\\n'\n")
    (folder / "scontrol").chmod(0o700)
    text = commands(**settings, time="1-00:30:00")["sbatch"]
    in_bash(text, folder, SLURM_JOB_NODELIST="n[7-8]", SLURM_JOB_ID="40123")
    ((words, where, environment),) = calls()
    assert where == str(place) and environment["HELPERS_RESULTS"] == ODD and words[-6:] == settings["train"]
    assert "--rdzv-endpoint=n7:20123" in words and "--rdzv-id=40123" in words
    options = re.findall(r"^#SBATCH --(.*)$", text, re.MULTILINE)
    assert text.startswith("#!/bin/bash\n#SBATCH") and options == SLURM


def test_options_of_the_launchers(monkeypatch):
    texts = commands("train --batch_size 8 --device cpu", timeout=60, interface="eth0", rdzv_endpoint="z:1")
    assert "--rdzv-endpoint=z:1" in texts["sbatch"] and "-x MASTER_ADDR=z -x MASTER_PORT=1 " in texts["mpirun"]
    assert all("HELPERS_TIMEOUT=60" in text and "GLOO_SOCKET_IFNAME=eth0" in text for text in texts.values())
    assert "gpus" not in texts["sbatch"]
    assert "# on host1:" in commands(hosts=None)["torchrun"]
    assert "--checkpoint-dir" in commands(max_restarts=1)["torchrun"]  # a restart without checkpoints is warned of
    monkeypatch.setenv("HELPERS_DATA", "/some where")
    assert "-x 'HELPERS_DATA=/some where'" in commands()["mpirun"]


WRONG = [{"nnodes": 0}, {"nnodes": 3}, {"hosts": "a,a"}, {"hosts": ["a", "-b"]}, {"rdzv_endpoint": "a"}]
WRONG_TRAIN = ("--batch 32", "--steps x", "--help", "--model resnet9", "--strategy baseline", "--global_batch 12")


@pytest.mark.parametrize(
    "settings",
    [*WRONG, *({"train": words} for words in (*WRONG_TRAIN, "--nproc-per-node 2", "--compiler-opt xla"))],
    ids=str,
)
def test_what_cannot_be_is_refused(settings):
    with pytest.raises(ValueError):
        commands(**settings)


def test_the_command_line(capsys):
    told = ["cluster", "--nnodes", "2", "--nproc_per_node=4", "--hosts", "a,b"]
    assert cli.main([*told, "--", "train", "--batch_size", "8", "--checkpoint_dir", "a_b c"]) == 0
    out = capsys.readouterr().out
    assert out.count("--batch-size 8 --checkpoint-dir 'a_b c'") == 4 and out.count("-m helpers train") == 4
    assert cli.main([*told, "--format", "mpirun", "--", "train", "--steps", "5"]) == 0
    assert "torchrun" not in capsys.readouterr().out
    assert cli.main([*told, "--", "train", "--stepps", "5"]) == 2 and "--stepps" in capsys.readouterr().err


# -- runs on several hosts, as far as one process can tell ---------------------------------


@pytest.mark.parametrize(
    "size, here, options, reason",
    [
        (3, 3, ["--global-batch", "32"], "cannot be split evenly over nproc_per_node 3"),  # a host fewer than before
        (6, 2, ["--global-batch", "32"], "nproc_per_node 2 × nnodes 3"),
        (3, 2, [], "2 of 3 ranks"),
        (4, 2, ["--nproc-per-node", "4"], "--nproc-per-node is 4"),
    ],
)
def test_what_cannot_go_on_in_this_world_is_refused(size, here, options, reason, monkeypatch, capsys):
    for name, value in {"RANK": 0, "WORLD_SIZE": size, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": here}.items():
        monkeypatch.setenv(name, str(value))
    assert cli.main(["train", "--device", "cpu", *options]) == 2
    assert reason in capsys.readouterr().err


def test_a_run_does_not_begin_among_the_checkpoints_of_another(tmp_path):
    config = RunConfig(checkpoint_dir=str(tmp_path))
    checkpoint.check_unused(config)
    checkpoint.save(tmp_path, 70, {"step": 70})
    with pytest.raises(ValueError, match="step-000000070.pt.*--resume"):
        checkpoint.check_unused(config)
    checkpoint.check_unused(RunConfig())  # it saves nothing


# -- two hosts -----------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{"rate": 0}, {"rate": True}, {"delay": -1}, {"delay": "1ms"}], ids=str)
def test_links_that_cannot_be(settings):
    with pytest.raises(ValueError, match=next(iter(settings))), twohosts.two_hosts(**settings):
        pass

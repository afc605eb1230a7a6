"""notebooks/scripts/train_fsdp.py: interrupted, and resumed on other ranks, it ends with the same weights."""

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from shards import needs_fsdp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from helpers import RankError, launch

SCRIPT = Path(__file__).resolve().parents[2] / "notebooks" / "scripts" / "train_fsdp.py"
SMALL = ["--blocks", "2", "--width", "32", "--length", "16", "--batch", "4", "--save-every", "2"]


def run_here(checkpoint, steps, *options):
    sys.argv = [str(SCRIPT), "--checkpoint", str(checkpoint), "--steps", str(steps), *SMALL, *options]
    runpy.run_path(str(SCRIPT), run_name="__main__")


def on_ranks(ranks, *arguments):
    launch(run_here, ranks, *arguments, threads=1, env={"HELPERS_DEVICE": "cpu"}, timeout=600)


def weights(checkpoint, steps):
    """The whole tensors of a checkpoint of `steps` steps, by name."""
    assert [path.name for path in checkpoint.iterdir()] == [f"step{steps}"]
    dcp_to_torch_save(checkpoint / f"step{steps}", checkpoint.with_suffix(".pt"))
    state = torch.load(checkpoint.with_suffix(".pt"), weights_only=True)
    moments = state["optimizer"]["state"]
    return {**state["model"], **{f"{name} exp_avg": of_one["exp_avg"] for name, of_one in moments.items()}}


def furthest(one, other):
    assert one.keys() == other.keys() and len(one) > 20
    return max((one[name] - other[name]).abs().max().item() for name in one)


def test_it_is_a_script_one_can_read_at_once():
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 140 and "helpers" not in "\n".join(lines)


@needs_fsdp
@pytest.mark.long  # notebook 12 does the same and compares the models
def test_resumed_on_other_ranks_it_ends_with_the_same_weights(tmp_path, capfd):
    on_ranks(2, tmp_path / "whole", 6)
    (tmp_path / "moved" / "part").mkdir(parents=True)  # of a run that was killed while it wrote
    for ranks, steps in ((2, 2), (1, 4), (4, 6)):
        on_ranks(ranks, tmp_path / "moved", steps, "--recompute")
    printed = capfd.readouterr().out.splitlines()
    assert [line.partition(" saved by ")[0][-6:] for line in printed] == ["step 2", "step 4", "step 6"] * 2
    whole, moved = weights(tmp_path / "whole", 6), weights(tmp_path / "moved", 6)
    assert furthest(whole, moved) < 1e-4 < furthest(whole, {name: torch.zeros_like(whole[name]) for name in whole})


def test_a_batch_that_cannot_be_shared_evenly_is_refused(tmp_path):
    with pytest.raises(RankError, match="a batch of 4 cannot be shared evenly by 3 ranks"):
        on_ranks(3, tmp_path / "whole", 8)


def torchrun(ranks, checkpoint, steps, kill_after=None):
    """The script's lines; with `kill_after` its ranks are killed when a line begins so."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += [str(SCRIPT), "--checkpoint", str(checkpoint), "--steps", str(steps), *SMALL]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        for line in run.stdout:
            lines.append(line.strip())
            if kill_after and line.startswith(kill_after):
                run.terminate()
    return run.returncode, [line for line in lines if line.startswith("step ")]


@pytest.mark.long
def test_killed_and_resumed_on_other_ranks(tmp_path):
    status, whole = torchrun(2, tmp_path / "whole", 40)
    assert status == 0 and len(whole) == 20
    for _ in range(9):
        status, killed = torchrun(2, tmp_path / "killed", 40, kill_after="step 2 saved")
        if not (tmp_path / "killed" / "step40").exists():
            break
        shutil.rmtree(tmp_path / "killed")  # it was at its end before it was killed
    assert status != 0 and killed[0] == whole[0] and len(killed) < 20
    status, resumed = torchrun(1, tmp_path / "killed", 40)
    assert status == 0 and resumed[-1].startswith("step 40 saved by 1 rank(s)")
    assert furthest(weights(tmp_path / "whole", 40), weights(tmp_path / "killed", 40)) < 1e-2

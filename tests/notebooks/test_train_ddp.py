"""notebooks/scripts/train_ddp.py under torchrun: killed after an epoch and resumed, it ends with the same weights."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from helpers import RankError, launch

SCRIPT = Path(__file__).resolve().parents[2] / "notebooks" / "scripts" / "train_ddp.py"


def torchrun(checkpoint, *options, kill_after=None):
    """The script's lines; with `kill_after` its ranks are killed when that epoch has been saved."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(SCRIPT), "--checkpoint", str(checkpoint), *options]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        for line in run.stdout:
            lines.append(line.strip())
            if kill_after is not None and line.startswith(f"epoch {kill_after} saved"):
                run.terminate()
    return run.returncode, [line for line in lines if line.startswith("epoch ")]


def tensors(value):
    """All tensors in a checkpoint, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for part in values for tensor in tensors(part)]


def test_it_is_a_script_one_can_read_at_once():
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120 and "helpers" not in "\n".join(lines)


def run_here(checkpoint, epochs):
    sys.argv = [str(SCRIPT), "--checkpoint", str(checkpoint), "--epochs", str(epochs)]
    runpy.run_path(str(SCRIPT), run_name="__main__")


def same(one, other):
    return len(tensors(one)) > 20 and all(map(torch.equal, tensors(one), tensors(other)))


def test_on_another_number_of_ranks_it_is_refused(tmp_path):
    torch.save({"random": [torch.zeros(1)] * 2}, tmp_path / "saved")  # a state of the generator for each rank
    with pytest.raises(RankError, match="was saved by 2 ranks: start as many"):
        launch(run_here, 1, tmp_path / "saved", 2, threads=1, env={"HELPERS_DEVICE": "cpu"})


# Notebook 03 does the same and compares the models.
@pytest.mark.long
def test_killed_and_resumed_it_ends_with_the_same_weights(tmp_path):
    status, whole = torchrun(tmp_path / "whole.pt", "--epochs", "3")
    assert status == 0 and [line.split(":")[0] for line in whole] == [f"epoch {k} saved" for k in range(3)]

    for _ in range(9):
        status, killed = torchrun(tmp_path / "killed.pt", "--epochs", "3", kill_after=0)
        done = torch.load(tmp_path / "killed.pt", weights_only=True)["epochs_done"]  # one more than said, perhaps
        if done < 3:
            break
        (tmp_path / "killed.pt").unlink()  # it was at its end before it was killed
    assert status != 0 and killed == whole[: len(killed)] and 1 <= len(killed) <= done < 3
    status, resumed = torchrun(tmp_path / "killed.pt", "--epochs", "3")
    assert status == 0 and resumed == whole[done:]

    one, other = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("whole", "killed"))
    assert one["epochs_done"] == other["epochs_done"] == 3 and same(one, other)

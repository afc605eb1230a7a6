"""notebooks/scripts/train_ddp.py and train_fsdp.py: resumed, they end with the same weights."""

import runpy
import subprocess
import sys

import pytest
import torch
from shards import needs_fsdp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from helpers import RankError, launch
from helpers.paths import project_root

DDP, FSDP = (project_root() / "notebooks" / "scripts" / name for name in ("train_ddp.py", "train_fsdp.py"))
SMALL = "--blocks 2 --width 32 --length 16 --batch 4 --save-every 2".split()


def torchrun(ranks, script, checkpoint, *options, kill_after=None):
    """(exit status, what the script says that it saved); with `kill_after` ranks are killed when a line begins so."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += [str(script), "--checkpoint", str(checkpoint), *options]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        for line in run.stdout:
            lines.append(line.strip())
            if kill_after and line.startswith(kill_after):
                run.terminate()
    return run.returncode, [line for line in lines if line.startswith("epoch ")]


def run_here(script, checkpoint, *options):
    sys.argv = [str(script), "--checkpoint", str(checkpoint), *options]
    runpy.run_path(str(script), run_name="__main__")


def on_ranks(ranks, *arguments):
    launch(run_here, ranks, *arguments, threads=1, env={"HELPERS_DEVICE": "cpu"}, timeout=600)


def test_ranks_that_cannot_share_are_refused(tmp_path):
    torch.save({"random": [torch.zeros(1)] * 2}, tmp_path / "saved")  # a state of the generator for each rank
    with pytest.raises(RankError, match="was saved by 2 ranks"):
        on_ranks(1, DDP, tmp_path / "saved", "--epochs", "2")
    with pytest.raises(RankError, match="a batch of 4 cannot be shared evenly by 3 ranks"):
        on_ranks(3, FSDP, tmp_path / "whole", "--steps", "8", *SMALL)


def tensors(value):
    """All tensors in a checkpoint, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for part in values for tensor in tensors(part)]


@pytest.mark.long  # notebook 03 does the same and compares the models
def test_ddp_killed_and_resumed(tmp_path):
    status, whole = torchrun(2, DDP, tmp_path / "whole.pt", "--epochs", "3")
    assert status == 0 and [line.split(":")[0] for line in whole] == [f"epoch {k} saved" for k in range(3)]
    killed = tmp_path / "killed.pt"
    for _ in range(9):
        status, lines = torchrun(2, DDP, killed, "--epochs", "3", kill_after="epoch 0 saved")
        done = torch.load(killed, weights_only=True)["epochs_done"]  # one more than said, perhaps
        if done < 3:
            break
        killed.unlink()  # it was at its end before it was killed
    assert status != 0 and lines == whole[: len(lines)] and 1 <= len(lines) <= done < 3
    assert torchrun(2, DDP, killed, "--epochs", "3") == (0, whole[done:])
    one, other = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("whole", "killed"))
    assert one["epochs_done"] == other["epochs_done"] == 3
    assert len(tensors(one)) > 20 and all(map(torch.equal, tensors(one), tensors(other)))


def weights(checkpoint, steps):
    """The whole tensors of a sharded checkpoint of `steps` steps, by name."""
    assert [path.name for path in checkpoint.iterdir()] == [f"step{steps}"]
    dcp_to_torch_save(checkpoint / f"step{steps}", checkpoint.with_suffix(".pt"))
    state = torch.load(checkpoint.with_suffix(".pt"), weights_only=True)
    moments = state["optimizer"]["state"]
    return {**state["model"], **{f"{name} exp_avg": of_one["exp_avg"] for name, of_one in moments.items()}}


def furthest(one, other):
    assert one.keys() == other.keys() and len(one) > 20
    return max((one[name] - other[name]).abs().max().item() for name in one)


@needs_fsdp
@pytest.mark.long  # notebook 12 does the same and compares the models
def test_fsdp_resumed_on_other_ranks(tmp_path):
    on_ranks(2, FSDP, tmp_path / "whole", "--steps", "6", *SMALL)
    (tmp_path / "moved" / "part").mkdir(parents=True)  # of a run that was killed while it wrote
    for ranks, steps in ((2, "2"), (1, "4"), (4, "6")):
        on_ranks(ranks, FSDP, tmp_path / "moved", "--steps", steps, *SMALL, "--recompute")
    whole, moved = weights(tmp_path / "whole", 6), weights(tmp_path / "moved", 6)
    assert furthest(whole, moved) < 1e-4 < furthest(whole, {name: torch.zeros_like(whole[name]) for name in whole})

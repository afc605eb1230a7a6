"""What notebooks/scripts/train_ddp.py and train_fsdp.py refuse; notebooks 03 and 12 kill and resume them."""

import runpy
import sys

import pytest
import torch

from helpers import RankError, launch
from helpers.paths import project_root

DDP, FSDP = (project_root() / "notebooks" / "scripts" / name for name in ("train_ddp.py", "train_fsdp.py"))
SMALL = "--blocks 2 --width 32 --length 16 --batch 4 --save-every 2".split()


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

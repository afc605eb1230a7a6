"""`platforms.horovod.ddp`: bad options, the names of torch.distributed, mpirun; its training is in hvd_cases/ddp.py."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import platforms.horovod.ddp as dist

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "options, error, words",
    [
        ({"compression": "fp8"}, ValueError, "'fp16', 'bf16', 'powersgd'"),
        ({"compression": "fp16", "powersgd_rank": 2}, ValueError, "goes with 'powersgd' only"),
        ({"powersgd_start": 2}, ValueError, "powersgd_start is given, but compression is None"),
        ({"compression": "powersgd", "powersgd_rank": 0}, ValueError, "1 or more"),
        ({"compression": "powersgd", "powersgd_start": 1}, ValueError, "2 or more"),
        ({"compression": "powersgd", "powersgd_rank": 1.5}, ValueError, "whole number"),
    ],
)
def test_options_that_cannot_be_meant_are_refused_before_anything_is_sent(options, error, words):
    with pytest.raises(error, match=words):
        dist.DistributedDataParallel(torch.nn.Linear(2, 2), **options)


def test_everything_else_is_torch_distributed():
    assert dist.all_reduce is torch.distributed.all_reduce and dist.ReduceOp.SUM and "barrier" in dir(dist)
    with pytest.raises(AttributeError, match="no_such"):
        dist.no_such  # noqa: B018
    dist.init_process_group("gloo")  # a world of one, started by nobody
    assert (dist.get_rank(), dist.get_world_size()) == (0, 1) and "RANK" not in os.environ
    dist.destroy_process_group()


@pytest.mark.long
@pytest.mark.skipif(not any(Path(p, "mpirun").exists() for p in os.get_exec_path()), reason="no mpirun here")
def test_ranks_of_mpirun_meet_twice(tmp_path):
    script = tmp_path / "meet.py"
    script.write_text(
        textwrap.dedent("""
        import os, torch
        import platforms.horovod.ddp as dist
        for turn in range(2):
            dist.init_process_group("gloo")
            ones = torch.ones(1)
            dist.all_reduce(ones)
            dist.destroy_process_group()
        os.write(1, f"{os.environ['LOCAL_RANK']} {ones.item()}\\n".encode())
        """)
    )
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable, str(script)]
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    clean["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=300)
    assert sorted(done.stdout.split("\n")) == ["", "0 2.0", "1 2.0"], done.stderr

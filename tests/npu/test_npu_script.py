"""Scripts on the emulated NPU, `python -m platforms.npu`, and what is shown where there is none."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from npu_ranks import free_port, needs_npu

import platforms.npu
from platforms.npu import cli, recorded

ROOT = Path(__file__).parents[2]
TWO_CARDS = """
    import os, sys, torch
    import torch_npu
    from apex import amp
    import torch.distributed as dist, torch.multiprocessing as mp

    def work(rank):
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[1])
        torch_npu.npu.set_device(rank)
        dist.init_process_group("hccl", rank=rank, world_size=2)
        x = torch.ones(3).npu() * rank
        dist.all_reduce(x)
        print(f"sum {x.tolist()}\\n", end="", flush=True)
        dist.destroy_process_group()

    if __name__ == "__main__":
        print(torch.npu.device_count(), amp.__name__, sys.argv[2:], flush=True)
        mp.spawn(work, nprocs=2)
        sys.exit(3)
"""


@needs_npu
@pytest.mark.long  # a second test below starts what is particular to the command
def test_the_command_runs_a_script_that_spawns_with_options_of_its_own(tmp_path):
    path = tmp_path / "main.py"
    path.write_text(textwrap.dedent(TWO_CARDS))
    command = [sys.executable, "-m", "platforms.npu", "--devices", "4", str(path), str(free_port())]
    command += ["--loss_scale=-1", "--a-b", "x_y"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 3, done.stderr
    first, *sums = done.stdout.splitlines()
    assert first == "4 platforms.npu.apex.amp ['--loss_scale=-1', '--a-b', 'x_y']"
    assert sums == ["sum [1.0, 1.0, 1.0]"] * 2


@pytest.mark.parametrize("rest", [["--devices", "9", "-c", "1"], ["--memory", "0", "-c", "1"], ["no.py"], []])
def test_the_command_refuses_bad_input(rest, capsys, monkeypatch):
    monkeypatch.setattr(os, "execve", lambda *a: pytest.fail("a script was started"))
    assert cli.main(rest) == 2
    assert capsys.readouterr().err


@pytest.mark.long
def test_a_script_in_another_folder_needs_no_installed_package(tmp_path):
    """The shims find the kit by where they are."""
    made = platforms.npu.environment(2)
    made["PYTHONPATH"] = os.pathsep.join(p for p in made["PYTHONPATH"].split(os.pathsep) if "shims" in p)
    code = "from apex import amp; print(amp.__name__)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=made, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "platforms.npu.apex.amp", done.stderr


def test_without_a_compiler_recorded_answers_are_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(recorded, "project_root", lambda: tmp_path)
    monkeypatch.setenv("HELPERS_NPU_RECORD", "1")
    monkeypatch.setattr(recorded, "why_missing", lambda: None)
    assert platforms.npu.run_or_show("07", "sum", lambda a: {"n": a}, 3) == {"n": 3}
    monkeypatch.delenv("HELPERS_NPU_RECORD")
    assert platforms.npu.run_or_show("07", "other", lambda: [1]) == [1]
    monkeypatch.setattr(recorded, "why_missing", lambda: platforms.npu.NpuMissing("planted"))
    assert platforms.npu.run_or_show("07", "sum", lambda a: pytest.fail("was called"), 3) == {"n": 3}
    assert capsys.readouterr().out
    with pytest.raises(platforms.npu.NpuMissing, match="planted"):
        platforms.npu.run_or_show("07", "other", lambda: [1])

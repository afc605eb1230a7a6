"""Scripts on the emulated NPU: `platforms.npu.run` and `python -m platforms.npu`."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from kernel import running, wait_until
from npu_lab import free_port
from npu_ranks import needs_npu
from places import with_patience

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
        print("sum", x.tolist(), flush=True)
        dist.destroy_process_group()

    if __name__ == "__main__":
        print("cards", torch.npu.device_count(), amp.__name__, flush=True)
        mp.spawn(work, nprocs=2)
"""


def script(folder, text):
    path = folder / "main.py"
    path.write_text(textwrap.dedent(text))
    return path


@needs_npu
@pytest.mark.long  # notebook 07 runs such scripts, too
def test_a_script_that_spawns_finds_torch_npu_and_apex(tmp_path):
    lines = []
    done = platforms.npu.run(
        [script(tmp_path, TWO_CARDS), str(free_port())], devices=3, timeout=1800, echo=lines.append, cwd=tmp_path
    )
    assert done.check().returncode == 0 and done.error == ""
    assert lines.count("sum [1.0, 1.0, 1.0]") == 2 and lines[0].startswith("cards 3")
    assert done.output.splitlines() == lines
    assert [p["rank"] for p in done.processes] == [0, 1]
    assert [list(p["devices"]) for p in done.processes] == [["0"], ["1"]]
    assert [p["set_device"] for p in done.processes] == [[0], [1]]
    assert all(p["collectives"]["allreduce"] == 1 for p in done.processes)


@needs_npu
def test_a_script_that_fails_is_told_not_raised(tmp_path):
    script(tmp_path, "raise RuntimeError('not on the same device')")
    done = platforms.npu.run(["main.py"], echo=None, cwd=tmp_path)
    assert done.returncode == 1 and "same device" in done.error and done.error.startswith("RuntimeError")
    with pytest.raises(RuntimeError, match="status 1(.|\n)*same device"):
        done.check()


@needs_npu
def test_a_script_that_takes_too_long_is_stopped_with_its_children(tmp_path):
    text = """
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(child.pid, flush=True)
        child.wait()
    """
    began, path = time.monotonic(), script(tmp_path, text)
    done = with_patience(
        lambda seconds: platforms.npu.run([path], timeout=seconds, echo=None),
        lambda done: done.output.strip(),
        (8, 100),
    )
    assert done.timed_out and time.monotonic() - began < 400  # the child would sleep for 600
    with pytest.raises(RuntimeError, match="took too long"):
        done.check()
    child = int(done.output.split()[0])
    assert wait_until(lambda: not running(child), 300) is not None


@pytest.mark.parametrize(
    "arguments, options, error",
    [
        ("main.py", {}, TypeError),
        ([], {}, TypeError),
        (["nowhere.py"], {}, FileNotFoundError),
        (["-c", "1"], {"devices": 0}, ValueError),
        (["-c", "1"], {"devices": 9}, ValueError),
        (["-c", "1"], {"devices": "2"}, TypeError),
        (["-c", "1"], {"memory": 0}, ValueError),
    ],
)
def test_bad_input_starts_nothing(arguments, options, error, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: pytest.fail("a process was started"))
    with pytest.raises(error):
        platforms.npu.run(arguments, **options)


@needs_npu
@pytest.mark.long
def test_the_command_runs_a_script_with_options_of_its_own(tmp_path):
    path = script(tmp_path, "import sys, torch, torch_npu\nprint(torch.npu.device_count(), sys.argv[1:])\nsys.exit(3)")
    command = [sys.executable, "-m", "platforms.npu", "--devices", "4", str(path), "--loss_scale=-1", "--a-b", "x_y"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.stdout == "4 ['--loss_scale=-1', '--a-b', 'x_y']\n" and done.returncode == 3


@pytest.mark.parametrize(
    "rest, told", [(["--devices", "9", "-c", "1"], "1 to 8"), (["no.py"], "no script"), ([], "which script")]
)
def test_the_command_refuses_bad_input(rest, told, capsys, monkeypatch):
    monkeypatch.setattr(os, "execve", lambda *a: pytest.fail("a script was started"))
    assert cli.main(rest) == 2
    assert told in capsys.readouterr().err


def test_without_a_compiler_recorded_answers_are_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(recorded, "project_root", lambda: tmp_path)
    monkeypatch.setenv("HELPERS_NPU_RECORD", "1")
    monkeypatch.setattr(recorded, "why_missing", lambda: None)
    assert platforms.npu.run_or_show("07", "sum", lambda a: {"n": a}, 3) == {"n": 3}
    monkeypatch.delenv("HELPERS_NPU_RECORD")
    assert platforms.npu.run_or_show("07", "other", lambda: [1]) == [1]
    monkeypatch.setattr(recorded, "why_missing", lambda: platforms.npu.NpuMissing("planted"))
    assert platforms.npu.run_or_show("07", "sum", lambda a: pytest.fail("was called"), 3) == {"n": 3}
    assert "as it was recorded" in capsys.readouterr().out
    with pytest.raises(platforms.npu.NpuMissing, match="planted"):
        platforms.npu.run_or_show("07", "other", lambda: [1])


def test_a_script_in_another_folder_needs_no_installed_package(tmp_path):
    """The shims find the kit by where they are."""
    made = platforms.npu.environment(2)
    made["PYTHONPATH"] = os.pathsep.join(p for p in made["PYTHONPATH"].split(os.pathsep) if "shims" in p)
    code = "from apex import amp; print(amp.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=made, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.strip() == "platforms.npu.apex.amp", done.stderr

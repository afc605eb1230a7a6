"""Unmodified Horovod scripts: `python -m platforms.horovod`, its import hook, and its start of ranks."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from kernel import running, wait_until

from helpers import launch
from platforms.horovod import __main__ as command
from platforms.horovod import imports, start

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests" / "scripts"
CPU = {"HELPERS_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": ""}


def hvd(*arguments, folder=ROOT, **environment):
    """Run `python -m platforms.horovod` as a reader does, in any folder."""
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return subprocess.run(
        [sys.executable, "-m", "platforms.horovod", *map(str, arguments)],
        cwd=folder,
        env={**clean, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def script(folder, text, name="train.py"):
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


# Whole scripts, in warm ranks


def run_script(name, *arguments):
    return command.run(False, str(SCRIPTS / name), [*arguments, "--no-cuda"])


def weights(names):
    return torch.cat([p.detach().reshape(-1) for p in names["model"].parameters()])


def small_scripts():
    digits = run_script("hvd_mnist.py", "--fp16-allreduce")
    once = "--num-warmup-batches 1 --num-batches-per-iter 1 --num-iters 1"
    small = f"--model resnet18 --image-size 32 --batch-size 2 {once}"
    run_script("hvd_synthetic_benchmark.py", *small.split())
    return weights(digits), digits["final_accuracy"]


def test_digits_and_the_benchmark(capsys):
    answers = launch(small_scripts, 2, threads=1, env=CPU, timeout=300)
    (first, accuracy), (second, same) = answers
    assert torch.equal(first, second) and accuracy == same > 0.9
    shown = capsys.readouterr().out
    assert shown.count("[rank 0] test loss") == 3 and "[rank 1]" not in shown
    assert shown.count("images/s a CPU") == 1 and "[rank 0] all 2:" in shown


def resumed(folder):
    """A run that stopped after its first epoch and was started again, and one that did not stop."""
    common = ("--model", "resnet18", "--batches-per-allreduce", "2", "--batch-size", "2", "--images", "12")
    options = (*common, "--fp16-allreduce", "--gradient-predivide-factor", "2.0", "--checkpoint-format")
    run_script("hvd_imagenet_resnet50.py", *options, f"{folder}/a-{{epoch}}", "--epochs", "1")
    again = run_script("hvd_imagenet_resnet50.py", *options, f"{folder}/a-{{epoch}}", "--epochs", "2")
    straight = run_script("hvd_imagenet_resnet50.py", *options, f"{folder}/b-{{epoch}}", "--epochs", "2")
    assert again["resume_from_epoch"] == 1 and straight["resume_from_epoch"] == 0
    return weights(again), weights(straight)


@pytest.mark.long
def test_imagenet_style_resumes_where_it_stopped(tmp_path):
    (first, straight), (second, _) = launch(resumed, 2, tmp_path, threads=1, env=CPU, timeout=600)
    assert torch.equal(first, second)
    assert torch.dist(first, straight) <= 1e-6 * straight.norm()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-1", "a-2", "b-1", "b-2"]


# The command


def test_ranks_are_started_labelled_and_find_their_place(tmp_path):
    path = script(
        tmp_path,
        """
        import multiprocessing, os, sys
        import beside
        import horovod
        from horovod.common.exceptions import HorovodInternalError

        def child():
            import horovod
            print("child", horovod.__name__, flush=True)

        if __name__ == "__main__":
            print(sys.argv[1:], beside.here, os.environ["RANK"], horovod.__name__, HorovodInternalError.__name__)
            if os.environ["RANK"] == "1":
                worker = multiprocessing.get_context("spawn").Process(target=child)
                worker.start()
                worker.join()
        """,
    )
    script(tmp_path, "here = 'beside'", "beside.py")
    (tmp_path / "elsewhere").mkdir()
    options = ["-H", "localhost:4", "--gloo", "-p", "22", "--verbose"]
    done = hvd("-np", 2, *options, "python", path, "--a-b", "x y", folder=tmp_path / "elsewhere")
    told = "['--a-b', 'x y'] beside {0} platforms.horovod HorovodInternalError"
    expected = ["[rank 0] " + told.format(0), "[rank 1] " + told.format(1), "[rank 1] child platforms.horovod"]
    assert sorted(done.stdout.splitlines()) == expected and done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_a_failing_rank_is_named_and_the_others_are_stopped(tmp_path):
    path = script(
        tmp_path,
        """
        import os, subprocess, sys, time
        if os.environ["RANK"] == "1":
            while not os.path.exists(sys.argv[1]):
                time.sleep(0.01)
            raise ValueError("planted")
        print(subprocess.Popen(["sleep", "600"]).pid, flush=True)
        open(sys.argv[1], "w").close()
        time.sleep(600)
        """,
    )
    began = time.monotonic()
    done = hvd("--num-proc=2", path, tmp_path / "printed")
    assert done.returncode == 1 and time.monotonic() - began < 300
    lines = done.stderr.splitlines()
    assert lines[0] == "[rank 1] Traceback (most recent call last):" and str(path) in lines[1]  # none of our frames
    assert lines[-1] == "platforms.horovod: rank 1 failed with exit status 1; the others were stopped"
    worker = int(done.stdout.split()[-1])
    assert wait_until(lambda: not running(worker), 100) is not None


def interruptible():
    """A shell makes what it starts in the background deaf to Ctrl-C, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(
    "number, status",
    [(signal.SIGINT, 130), (signal.SIGKILL, -9), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long)],
)
def test_stopping_the_command_stops_all_ranks(tmp_path, number, status):
    path = script(tmp_path, "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)")
    run = [sys.executable, "-m", "platforms.horovod", "-np", "2", str(path)]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen(run, cwd=ROOT, preexec_fn=interruptible, **pipes) as process:
        ranks = [int(process.stdout.readline().split()[-1]) for _ in range(2)]
        process.send_signal(number)
        _, told = process.communicate(timeout=300)
    assert process.returncode == status and ("interrupted" in told) == (number != signal.SIGKILL)
    assert wait_until(lambda: not any(map(running, ranks)), 300) is not None


@pytest.mark.parametrize(
    "arguments, told",
    [
        ([], "which script"),
        (["-np", "0", "x.py"], "from 1 to"),
        (["-H", "a:1", "x.py"], "mpirun -np N -H a:1 python -m platforms.horovod"),
        (["-np", "3", "-H", "localhost:2", "x.py"], "room for 2"),
        (["-H", "localhost:two", "x.py"], "localhost:2"),
        (["--start-timeout", "soon", "x.py"], "give a number"),
        (["-np", "2", "--min-np", "3", "x.py"], "give -np 3 or more"),
        (["--host-discovery-script", "x.sh", "x.py"], "unrecognized arguments: --host-discovery-script"),
        (["--hostfile", "nowhere", "x.py"], "No such file"),
        (["nowhere.py"], "no script 'nowhere.py'"),
        (["-np", "2", "-m", "nowhere.at_all"], "no module 'nowhere.at_all'"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(arguments, told, capsys, monkeypatch):
    monkeypatch.setattr(start, "start", lambda *a: pytest.fail("ranks were started"))
    monkeypatch.setattr(command, "run", lambda *a: pytest.fail("a script was run"))
    assert command.main(arguments) == 2
    assert told in capsys.readouterr().err


# The import hook


def import_everything():
    """In a rank of its own, since the hook stays."""
    imports.install()
    import horovod
    import horovod.common.exceptions
    import horovod.torch as hvd
    import horovod.torch.elastic
    from horovod.torch.mpi_ops import allreduce

    import platforms.horovod.torch

    assert horovod is platforms.horovod and hvd is platforms.horovod.torch and horovod.run is start.run
    assert hvd.__spec__.name == "platforms.horovod.torch" and allreduce is hvd.allreduce
    assert horovod.common.exceptions.HorovodInternalError is hvd.HorovodInternalError
    for name in ("horovod.spark.torch", "horovod.ray", "horovod.torch.nonsense"):
        with pytest.raises(ModuleNotFoundError, match=r"^horovod[a-z.]* has no counterpart in platforms.horovod"):
            __import__(name)


def test_horovod_is_ours():
    launch(import_everything, 1, threads=1, env=CPU)


def test_horovod_run_is_a_launch():
    assert start.run(os.getenv, ("RANK",), np=2, hosts="localhost:2", use_gloo=True, env=CPU) == ["0", "1"]
    with pytest.raises(ValueError, match="names far"):
        start.run(len, ([],), np=1, hosts="localhost:1,far:2")
    with pytest.raises(ValueError, match="min_np"):
        start.run(len, ([],), np=1, min_np=1)

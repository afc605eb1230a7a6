"""RunConfig's `compiler`: the same training, measured after the plan was chosen."""

import re
import subprocess
import sys

import pytest
from torch import nn

import helpers
from helpers import RunConfig
from helpers import __main__ as cli
from helpers.records import read

TINY = dict(data="mock", augment=False, evaluate=False, lr=0.01, threads=1, device="cpu", local_batch=32)


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("HELPERS_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("HELPERS_PROGRESS", "plain")


def tiny():
    """A model that compiles in a second or two."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 16), nn.SiLU(), nn.Linear(16, 1000))


def losses(record):
    return record["measured"]["samples"]["loss"]


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
def test_compiled_runs_train_as_eager_does(ranks):
    eager = RunConfig(model=tiny, steps=40, strategy="ddp" if ranks > 1 else "baseline", nproc_per_node=ranks, **TINY)
    expected = helpers.run(eager, timeout=1800)
    for compiler in ("auto", "inductor"):
        record = helpers.run(eager.but(compiler=compiler), timeout=1800)
        assert losses(record) == pytest.approx(losses(expected), rel=1e-4)
        found = record["measured"]["compiler"]
        assert found["asked"] == compiler and found["graphs"] >= 1 and found["compile_s"] > 0
        assert found["breaks"] == found["recompilations"] == []
        assert record["measured"]["images_per_s"]["n"] >= 5
        if compiler == "auto":
            assert found["plan"] in ("eager", "inductor") and found["plan"] in record["measured"]["note"]
            assert [row["plan"] for row in found["rows"]] == ["eager", "inductor"]
            assert record["measured"]["step_time_s"]["n"] <= 40 - 8 - 3, "steps that took turns are not timed"
    assert expected["measured"]["compiler"] is None


@pytest.mark.long
def test_an_evaluation_is_not_worth_a_compilation():
    config = RunConfig(model=tiny, steps=6, compiler="inductor", **{**TINY, "evaluate": True})
    record = helpers.run(config, timeout=1800)
    assert record["measured"]["compiler"]["graphs"] == 1
    assert record["measured"]["evaluation"]["count"] > 0


def test_without_the_xla_environment_no_process_starts(tmp_path, monkeypatch):
    monkeypatch.setenv("HELPERS_XLA_PYTHON", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match="make xla"):
        helpers.run(RunConfig(steps=2, compiler="xla"))
    assert read.read().records == []


@pytest.mark.long
def test_the_launch_script_prints_a_log_and_says_what_was_chosen():
    words = "--model=silu_mlp --nproc_per_node=2 --batch_size=16 --steps=40 --compiler-opt --log-every=5 --lr=0.01"
    command = [sys.executable, "-m", "helpers", "train", *words.split(), "--device=cpu", "--threads=1", "--data=digits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    line = r"epoch \d+  step \d+/40  batch time \d+\.\d{3} s  [\d,.]+ samples/s  peak memory [\d,]+ MiB  loss \d+\.\d+"
    logged = re.findall(line, done.stdout)
    assert len(logged) >= 2 and "step 40/40" in logged[-1]
    assert re.search(r"optimize: chose \S+ of 2 plans", done.stdout)
    record = read.read().records[0]
    assert record["config"]["compiler"] == "auto" and record["status"] == "completed"


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--compiler-opt=xla"], "let the command start"),
        (["--log-every=0"], "--log-every is 0"),
    ],
)
def test_the_launch_script_under_torchrun_refuses(arguments, said, monkeypatch, capsys):
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    assert cli.main(["train", *arguments, "--steps=2"]) == 2
    assert said in capsys.readouterr().err

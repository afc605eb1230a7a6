"""Runs that stop, resume, fail: what they leave behind, and that nothing is lost."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from toys import float64_net, toy_data

import helpers
from helpers import RankError, RunConfig, launch
from helpers.records import read
from helpers.training import checkpoint
from helpers.training.loop import train


@pytest.fixture(autouse=True)
def own_results(tmp_path, monkeypatch):
    monkeypatch.setenv("HELPERS_RESULTS", str(tmp_path / "results"))


def net_with_dropout():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 3)).double()


def config(folder, **changes):
    settings = dict(
        model=net_with_dropout,
        data=toy_data,
        strategy="ddp",
        nproc_per_node=2,
        global_batch=32,
        steps=20,
        threads=1,
        checkpoint_dir=str(folder),
        checkpoint_every=5,
        warmup_steps=2,
    )
    return RunConfig(**{**settings, **changes})


def losses(config):
    return launch(train, config.processes, config, timeout=600)[0]["samples"]["loss"]


def test_resume_follows_the_run_that_was_never_stopped(tmp_path):
    """Stopped in the middle of an epoch (6 steps each), with momentum and with dropout on every rank."""
    whole = losses(config(tmp_path / "whole"))
    first = losses(config(tmp_path / "cut", steps=10))
    rest = losses(config(tmp_path / "cut", resume=True))
    assert first + rest == whole
    weights = [checkpoint.latest(tmp_path / name)["model"] for name in ("whole", "cut")]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_resume_on_another_number_of_ranks(tmp_path):
    plain = dict(model=float64_net)
    whole = losses(config(tmp_path / "whole", **plain))
    losses(config(tmp_path / "cut", steps=10, **plain))
    rest = losses(config(tmp_path / "cut", resume=True, strategy="baseline", nproc_per_node=1, **plain))
    assert rest == pytest.approx(whole[10:], abs=1e-10)


@pytest.mark.long
def test_resume_after_sigkill_of_everything(tmp_path):
    """The process that launched is killed while training goes on; the run goes on from the last checkpoint."""
    folder = tmp_path / "killed"
    code = (
        "import sys; sys.path[:0] = sys.argv[2:]\n"
        "import pathlib, test_train\n"
        "test_train.losses(test_train.config(pathlib.Path(sys.argv[1]), loss=test_train.slow_loss))"
    )
    held = {**os.environ, "HELD_AT_A_CHECKPOINT": str(folder)}
    process = subprocess.Popen([sys.executable, "-c", code, str(folder), *sys.path], env=held)
    deadline = time.monotonic() + 600
    while not list(folder.glob("step-*.pt")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    reached = checkpoint.latest(folder)["step"]
    assert 5 <= reached < 20
    assert losses(config(folder, resume=True, loss=slow_loss)) == losses(config(tmp_path / "whole"))[reached:]


def slow_loss(outputs, labels):
    folder = os.environ.get("HELD_AT_A_CHECKPOINT")
    time.sleep(600 if folder and list(Path(folder).glob("step-*.pt")) else 0.1)
    return nn.functional.cross_entropy(outputs, labels)


@pytest.mark.parametrize("harm", ["empty", "cut", "one bit", "text"])
def test_damage_of_any_kind_is_noticed_and_the_one_before_used(tmp_path, harm):
    before, path = (checkpoint.save(tmp_path, step, {"step": step, "weights": torch.randn(100)}) for step in (2, 3))
    data = path.read_bytes()
    flipped = bytes([data[200] ^ 1])
    harmed = {"empty": b"", "cut": data[:-100], "one bit": data[:200] + flipped + data[201:], "text": b"no checkpoint"}
    path.write_bytes(harmed[harm])
    with pytest.raises(checkpoint.CheckpointError, match=f"{path.name} is damaged"):
        checkpoint.load(path)
    with pytest.warns(UserWarning, match="Trying the one before it"):
        assert checkpoint.latest(tmp_path)["step"] == 2
    before.write_bytes(harmed[harm])
    with pytest.raises(checkpoint.CheckpointError, match="all 2 checkpoints"), pytest.warns(UserWarning):
        checkpoint.latest(tmp_path)


def test_checkpoints_never_run_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("code ran",))

    path = checkpoint.save(tmp_path, 1, {"evil": Evil()})
    with pytest.raises(Exception, match="(?i)weights.only"):
        checkpoint.load(path)


def test_a_folder_alone_saves_every_epoch_and_at_the_end(tmp_path):
    measured = launch(train, 2, config(tmp_path, checkpoint_every=None, steps=8, resume=True), timeout=600)[0]
    assert [path.name for path in checkpoint.found(tmp_path)] == ["step-000000008.pt", "step-000000006.pt"]
    assert f"nothing to resume from in {tmp_path}" in measured["note"]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The checkpoint of a run's first steps."""
    folder = tmp_path_factory.mktemp("stopped")
    losses(config(folder, steps=5, schedule="cosine"))
    return folder


@pytest.mark.parametrize(
    "change, named",
    [
        (dict(lr=0.1), "peak_lr 0.05 (this run: 0.1)"),
        (dict(steps=9), "total steps 5 (this run: 9)"),
        (dict(loss=slow_loss), "loss 'cross_entropy' (this run: 'slow_loss')"),
        (dict(sync_batch_norm=True), "sync_batch_norm False (this run: True)"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(stopped, change, named):
    with pytest.raises(RankError, match=re.escape(f"of another run: {named}")):
        losses(config(stopped, resume=True, **{"schedule": "cosine", "steps": 5, **change}))


# -- records ------------------------------------------------------------------------------


def test_the_parts_of_a_run_add_up_and_samples_are_after_warm_up(tmp_path):
    def late(make):
        def made():
            time.sleep(0.5)
            return make()

        return made

    def slow_net():
        return nn.Sequential(net_with_dropout(), Slow())

    unsaved = dict(checkpoint_every=None, checkpoint_dir=None)
    record = helpers.run(config(tmp_path, data=late(toy_data), model=late(slow_net), **unsaved))
    measured, parts = record["measured"], record["measured"]["parts_s"]
    assert set(parts) == {"start", "data", "warm-up", "steps", "evaluation"}
    # What was planted, without which starting and stopping processes would have taken their time, too.
    assert parts["start"] >= 0.5 and parts["data"] >= 0.5
    assert parts["warm-up"] >= 2 * 0.05 and parts["steps"] >= 18 * 0.05 and parts["evaluation"] >= 0.05
    assert sum(parts.values()) <= record["total_s"]
    assert len(measured["samples"]["step_time_s"]) == 18 and measured["step_time_s"]["n"] == 18
    assert sum(measured["samples"]["step_time_s"]) <= measured["parts_s"]["steps"]
    assert len(measured["peak_memory_bytes"]) == 2 and min(measured["peak_memory_bytes"]) > 10**7
    clocks = measured["communication"]
    assert clocks["steps"] == 10 and 0 < clocks["exposed_s"] + clocks["hidden_s"] < measured["parts_s"]["steps"]
    (found,) = read.read().records
    assert {key: found[key] for key in record} == json.loads(json.dumps(record))
    assert read.row(found)["accuracy"] == measured["evaluation"]["accuracy"]


class Slow(nn.Module):
    def forward(self, x):
        time.sleep(0.05)
        return x


def test_a_failed_run_leaves_a_record_too():
    def loss(outputs, labels):
        raise ZeroDivisionError("planted")

    with pytest.raises(RankError, match="planted"):
        helpers.run(RunConfig(model=float64_net, loss=loss, data=toy_data, steps=5))
    (record,) = read.read().records
    assert record["status"] == "failed" and "planted" in record["error"] and record["total_s"] > 0


def test_a_batch_larger_than_the_set_is_refused_before_anything_starts():
    for data in ("digits", toy_data()):
        with pytest.raises(ValueError, match="a global batch of 2000 does not fit a training set of"):
            helpers.run(RunConfig(data=data, global_batch=2000))
        with pytest.raises(ValueError, match="does not fit"):
            helpers.compare([RunConfig(data=data), RunConfig(data=data, global_batch=2000, label="large")])
    assert read.read().records == []
    with pytest.raises(RankError, match="512"):  # only the ranks can know
        helpers.run(RunConfig(model=float64_net, data=toy_data, global_batch=512))


def test_no_test_set_and_no_accuracy_for_regression():
    def regression():
        data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 2))
        return data, data

    settings = dict(model=lambda: nn.Linear(4, 2), loss=nn.functional.mse_loss, steps=8, global_batch=16)
    measured = helpers.run(RunConfig(data=regression, **settings))["measured"]
    assert measured["evaluation"]["accuracy"] is None and measured["evaluation"]["count"] == 64
    assert measured["communication"] is None, "one device has none"
    measured = helpers.run(RunConfig(data=lambda: (regression()[0], None), **settings))["measured"]
    assert measured["evaluation"] is None


# -- on the way --------------------------------------------------------------------------


def test_accuracy_on_the_way_does_not_change_the_training(tmp_path):
    plain = losses(config(tmp_path / "a"))
    measured = launch(train, 2, config(tmp_path / "b", steps=None, epochs=3, evaluate_every=1), timeout=600)[0]
    assert measured["samples"]["loss"] == plain[:18]
    curve = measured["curve"]
    assert [(p["epoch"], p["step"], p["count"]) for p in curve] == [(1, 6, 37), (2, 12, 37), (3, 18, 37)]
    assert [p["train_s"] for p in curve] == sorted(p["train_s"] for p in curve)
    assert curve[-1]["train_s"] == pytest.approx(sum(e["s"] for e in measured["epochs"]))
    assert measured["evaluation"]["accuracy"] == curve[-1]["accuracy"]

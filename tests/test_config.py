"""RunConfig refuses what cannot work, says what is allowed, and works out the rest."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from helpers import RunConfig, config, device
from helpers.training.precision import LEVELS


@pytest.mark.parametrize(
    "settings, error, words",
    [
        (dict(strategy="dpp"), ValueError, "allowed: 'baseline', 'data_parallel', 'ddp', .* Did you mean 'ddp'"),
        (dict(precision="O7"), ValueError, "allowed: 'fp32', 'O1', 'O2'"),
        (dict(compiler="gcc"), ValueError, "compiler.* is 'gcc'"),
        (dict(device="gpu"), ValueError, "device is 'gpu'; allowed: None, 'cuda'"),
        (dict(model="resnet81"), ValueError, "Did you mean 'resnet8'"),
        (dict(model=nn.Linear(1, 1), data="digit"), ValueError, "Did you mean 'digits'"),
        (dict(model=3), TypeError, "pass a function that makes it"),
        (dict(data=[1, 2, 3]), TypeError, r"a pair \(train, test\)"),
        (dict(data=(range(3), 5)), TypeError, r"a pair \(train, test\)"),
        (dict(nproc_per_node=0), ValueError, "nproc_per_node is 0"),
        (dict(nproc_per_node=2.0), TypeError, "whole number"),
        (dict(warmup_steps=None), TypeError, "warmup_steps is None"),
        (dict(steps=5, epochs=1), ValueError, "give one of the two"),
        (dict(lr=0), ValueError, "above 0"),
        (dict(lr=float("nan")), ValueError, "finite"),
        (dict(momentum=-0.1), ValueError, "0 or more"),
        (dict(momentum=1), ValueError, "below 1"),
        (dict(loss="mse"), TypeError, "pass a function"),
        (dict(nproc_per_node=2), ValueError, "choose 'ddp'"),
        (dict(strategy="ddp", nproc_per_node=3, global_batch=64), ValueError, "The nearest that can: 63 or 66"),
        (dict(strategy="ddp", nproc_per_node=2, global_batch=64, local_batch=64), ValueError, "give only one"),
        (dict(resume=True), ValueError, "checkpoint_dir"),
        (dict(sync_batch_norm=True), ValueError, "only strategy 'ddp' or 'zero1' or 'fsdp' can do, not 'baseline'"),
        (dict(precision="O1-bf"), ValueError, "Did you mean 'O1-bf16'"),
        (dict(lr_scaling="quadratic"), ValueError, "allowed: 'none', 'linear', 'sqrt'"),
        (dict(optimizer="adam"), ValueError, "Did you mean 'adamw'"),
        (dict(optimizer="adamw", compiler="xla"), ValueError, "is not offered with XLA"),
        (dict(schedule="cosin"), ValueError, "Did you mean 'cosine'"),
        (
            dict(accumulation=3, global_batch=64),
            ValueError,
            "over nproc_per_node 1 × accumulation 3: .* The nearest that can: 63 or 66",
        ),
        (
            dict(accumulation=4, global_batch=128, local_batch=64),
            ValueError,
            "local_batch 64 × .* accumulation 4 = 256",
        ),
        (dict(lr_warmup_epochs=3, epochs=2), ValueError, "ends after 2 epoch"),
        (dict(evaluate_every=3, epochs=2), ValueError, "ends after 2 epoch"),
        (dict(evaluate_every=1, evaluate=False), ValueError, "leave one of them out"),
        (dict(channels_last="yes"), TypeError, "must be True or False"),
    ],
)
def test_refused(settings, error, words):
    with pytest.raises(error, match=words):
        RunConfig(**settings)


@pytest.mark.parametrize("name", [name for name, one in config.SETTINGS.items() if one.type in (int, float)])
def test_a_number_is_not_negative_and_nothing_else(name):
    for value in (-1, True, "1"):
        with pytest.raises((TypeError, ValueError), match=f"{name}.* is {value!r}"):
            RunConfig(**{name: value})


def test_batches_follow_from_each_other():
    assert RunConfig().global_batch == RunConfig().local_batch == 64
    by_global = RunConfig(strategy="ddp", nproc_per_node=4, global_batch=128)
    by_local = RunConfig(strategy="ddp", nproc_per_node=4, local_batch=32)
    assert (by_global.local_batch, by_local.global_batch) == (32, 128)
    assert by_local.label == "DDP ×4" and by_local.processes == 4
    assert RunConfig(strategy="data_parallel", nproc_per_node=2).processes == 1
    by_local = RunConfig(strategy="ddp", nproc_per_node=2, local_batch=16, accumulation=4)
    by_global = RunConfig(strategy="ddp", nproc_per_node=2, global_batch=128, accumulation=4)
    assert (by_local.global_batch, by_global.local_batch) == (128, 16)
    assert by_local.label == "DDP ×2 · 4 micro-batches"
    assert by_global.but(accumulation=1).local_batch == 64


@pytest.mark.parametrize("given, stands", [("O0", "fp32"), ("bf16", "O1-bf16"), ("fp16", "O1"), ("O2", "O2")])
def test_a_precision_has_one_name_in_records_and_labels(given, stands):
    chosen = RunConfig(precision=given, channels_last=True)
    assert chosen.precision == stands
    assert chosen.label == ("baseline · channels last" if stands == "fp32" else f"baseline · {stands} · channels last")


def test_levels_are_those_that_training_knows():
    assert {name: level.dtype for name, level in LEVELS.items()} == {n: config.dtype_of(n) for n in config.PRECISIONS}


def test_more_threads_than_cores_are_said():
    cores = device.usable_cores()
    assert device.crowded(cores, 1, "cpu") == ""
    assert f"take turns on {cores} cores" in device.crowded(2 * cores, 1, "cpu")
    assert f"{2 * cores} CPU threads" in device.crowded(cores, 2, "cpu")


def test_a_changed_copy_keeps_the_global_batch():
    base = RunConfig(global_batch=96, steps=7, label="mine")
    other = base.but(strategy="ddp", nproc_per_node=3)
    assert (other.global_batch, other.local_batch, other.steps, other.label) == (96, 32, 7, "DDP ×3")
    assert base.but(epochs=2).steps is None and base.but(local_batch=8).global_batch == 8


def test_a_record_names_the_readers_own_objects():
    def my_net():
        return nn.Linear(1, 1)

    data = torch.utils.data.TensorDataset(torch.zeros(4, 1), torch.zeros(4))
    values = RunConfig(model=my_net, data=(data, data)).as_dict()
    assert values["model"].endswith("my_net") and values["data"] == "TensorDataset"


def test_more_devices_than_the_machine_has(monkeypatch):
    monkeypatch.setattr(device, "machine", lambda kind=None: device.Machine("cuda", 2, "planted", "nccl", 8, 4))
    with pytest.raises(ValueError, match="DDP ×4 needs 4 devices, this machine has 2"):
        RunConfig(strategy="ddp", nproc_per_node=4).check_machine()


def test_lessons_for_several_devices_fall_back_to_the_cpu(monkeypatch):
    monkeypatch.delenv("HELPERS_DEVICE", raising=False)
    monkeypatch.setattr(device, "accelerator_kind", lambda: "cuda")
    monkeypatch.setattr(device, "_count", lambda kind: 1)
    monkeypatch.setattr(device, "_name", lambda kind: kind)
    monkeypatch.setattr(device, "os", SimpleNamespace(**{**vars(os), "environ": {}}))  # choose() sets a variable
    assert device.machine().kind == "cuda" and device.accelerator_count() == 1
    assert device.choose(2).kind == "cpu" and device.accelerator_count() == 0


# -- one description of a setting ---------------------------------------------------------

PLANTED = """\
    dropout: float = setting(0.0, "share of the activations set to zero", changes_timing=True, in_checkpoint=True)
"""
LOOK = """
from types import SimpleNamespace
from helpers import __main__ as cli
from helpers import RunConfig, settings
from helpers.comparison.comparison import Comparison
from helpers.comparison import form
from helpers.config import SETTINGS
from helpers.cluster import commands
from helpers.training import checkpoint
import records

try:
    RunConfig(dropout=-1)
except ValueError as error:
    assert "dropout is -1; it must be 0 or more" in str(error)
else:
    raise AssertionError("it was not checked")
for command in ("train", "run"):
    assert cli._parser().parse_args([command, "--dropout", "0.5"]).dropout == 0.5
assert "train --dropout 0.5" in commands.commands("--dropout 0.5", nnodes=2, nproc_per_node=1)["torchrun"]

plain, other = RunConfig(), RunConfig(dropout=0.5)
assert [one.name for one in settings.differing(plain.as_dict(), other.as_dict(), SETTINGS)] == ["dropout"]
made = Comparison([records.baseline(), records.planted(), records.planted(dropout=0.5, label="other")])
assert [bool(row["efficiency"]) for row in made.rows()] == [True, True, False]
assert checkpoint.identity(SimpleNamespace(config=other))["dropout"] == 0.5

made = form.Form("cpu")
made.controls["dropout"].value = "0.5"
assert "dropout=0.5" in form.as_code(made.chosen) and "--dropout=0.5" in form.as_code(made.chosen)
"""


def test_a_new_setting_is_known_everywhere(tmp_path):
    """One line in a copy of config.py, and it is checked, has options and a control, and tells runs apart."""
    here = Path(config.__file__).parent
    (copy := tmp_path / "helpers").mkdir()
    for path in here.iterdir():
        if path.name not in ("config.py", "__pycache__"):
            (copy / path.name).symlink_to(path)
    source, place = (here / "config.py").read_text(encoding="utf-8"), "    label: str = setting("
    assert source.count(place) == 1
    (copy / "config.py").write_text(source.replace(place, PLANTED + place), encoding="utf-8")
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(here.parent / 'tests' / 'shared')!r}]\n{LOOK}"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_every_field_is_described():
    for one in config.SETTINGS.values():
        assert one.help and one.noun and (not one.in_checkpoint or one.changes_learning), one.name
    assert "weight_decay: weight decay of the optimizer." in RunConfig.__doc__

"""RunConfig refuses what cannot work, says what is allowed, and works out the rest."""

import pytest
import torch
from torch import nn

from helpers import RunConfig, device
from helpers.comparison import ladder


@pytest.mark.parametrize("settings, error, words", [
    (dict(strategy="dpp"), ValueError, "allowed: 'baseline', 'data_parallel', 'ddp'. Did you mean 'ddp'"),
    (dict(precision="O7"), ValueError, "allowed: 'fp32', 'O1', 'O2'"),
    (dict(compiler="gcc"), ValueError, "compiler is 'gcc'"),
    (dict(device="gpu"), ValueError, "device is 'gpu'; allowed: None, 'cuda'"),
    (dict(model="resnet81"), ValueError, "Did you mean 'resnet8'"),
    (dict(model=nn.Linear(1, 1), data="digit"), ValueError, "Did you mean 'digits'"),
    (dict(model=3), TypeError, "pass a function that makes it"),
    (dict(data=[1, 2, 3]), TypeError, r"a pair \(train, test\)"),
    (dict(data=(range(3), 5)), TypeError, r"a pair \(train, test\)"),
    (dict(nproc_per_node=0), ValueError, "nproc_per_node is 0"),
    (dict(nproc_per_node=2.0), TypeError, "whole number"),
    (dict(epochs=True), TypeError, "whole number"),
    (dict(epochs=-1), ValueError, "1 or more"),
    (dict(warmup_steps=None), TypeError, "warmup_steps is None"),
    (dict(steps=5, epochs=1), ValueError, "give one of the two"),
    (dict(lr=0), ValueError, "above 0"),
    (dict(lr=float("nan")), ValueError, "finite"),
    (dict(lr="0.1"), TypeError, "must be a number"),
    (dict(momentum=-0.1), ValueError, "0 or more"),
    (dict(loss="mse"), TypeError, "pass a function"),
    (dict(nproc_per_node=2), ValueError, "choose 'ddp'"),
    (dict(strategy="ddp", nproc_per_node=3, global_batch=64), ValueError, "The nearest that can: 63 or 66"),
    (dict(strategy="ddp", nproc_per_node=2, global_batch=64, local_batch=64), ValueError, "give only one"),
    (dict(resume=True), ValueError, "checkpoint_dir"),
    (dict(sync_batch_norm=True), ValueError, "needs strategy 'ddp'"),
    (dict(precision="O1-bf"), ValueError, "Did you mean 'O1-bf16'"),
    (dict(lr_scaling="quadratic"), ValueError, "allowed: 'none', 'linear', 'sqrt'"),
    (dict(schedule="cosin"), ValueError, "Did you mean 'cosine'"),
    (dict(accumulation=0), ValueError, "accumulation is 0"),
    (dict(accumulation=2.0), TypeError, "whole number"),
    (dict(accumulation=3, global_batch=64), ValueError,
     "over nproc_per_node 1 × accumulation 3: .* The nearest that can: 63 or 66"),
    (dict(accumulation=4, global_batch=128, local_batch=64), ValueError, "local_batch 64 × .* accumulation 4 = 256"),
    (dict(base_batch=0), ValueError, "base_batch is 0"),
    (dict(clip_norm=0), ValueError, "above 0"),
    (dict(clip_norm=True), TypeError, "must be a number"),
    (dict(lr_warmup_epochs=-1), ValueError, "0 or more"),
    (dict(lr_warmup_epochs=None), TypeError, "must be a number"),
    (dict(lr_warmup_epochs=3, epochs=2), ValueError, "ends after 2 epoch"),
    (dict(evaluate_every=3, epochs=2), ValueError, "ends after 2 epoch"),
    (dict(evaluate_every=1, evaluate=False), ValueError, "leave one of them out"),
    (dict(channels_last="yes"), TypeError, "must be True or False"),
])  # fmt: skip
def test_refused(settings, error, words):
    with pytest.raises(error, match=words):
        RunConfig(**settings)


def test_batches_follow_from_each_other():
    assert RunConfig().global_batch == RunConfig().local_batch == 64
    by_global = RunConfig(strategy="ddp", nproc_per_node=4, global_batch=128)
    by_local = RunConfig(strategy="ddp", nproc_per_node=4, local_batch=32)
    assert (by_global.local_batch, by_local.global_batch) == (32, 128)
    assert by_local.label == "DDP ×4" and by_local.processes == 4
    assert RunConfig(strategy="data_parallel", nproc_per_node=2).processes == 1


def test_micro_batches_are_a_factor_of_the_global_batch():
    by_local = RunConfig(strategy="ddp", nproc_per_node=2, local_batch=16, accumulation=4)
    by_global = RunConfig(strategy="ddp", nproc_per_node=2, global_batch=128, accumulation=4)
    assert (by_local.global_batch, by_global.local_batch) == (128, 16)
    assert by_local.label == "DDP ×2 · 4 micro-batches"
    assert by_global.but(accumulation=1).local_batch == 64


@pytest.mark.parametrize("given, stands", [("O0", "fp32"), ("bf16", "O1-bf16"), ("fp16", "O1"), ("O2", "O2")])
def test_a_precision_has_one_name_in_records_and_labels(given, stands):
    config = RunConfig(precision=given, channels_last=True)
    assert config.precision == stands
    assert config.label == ("baseline · channels last" if stands == "fp32" else f"baseline · {stands} · channels last")


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


@pytest.mark.parametrize("devices, labels", [
    (1, ["baseline", "DataParallel ×1", "DDP ×1"]), (2, ["baseline", "DataParallel ×2", "DDP ×2"]),
    (3, ["baseline", "DataParallel ×3", "DDP ×2", "DDP ×3"]),
    (8, ["baseline", "DataParallel ×8", "DDP ×2", "DDP ×4", "DDP ×8"]),
])  # fmt: skip
def test_the_ladder_changes_only_the_devices(devices, labels):
    rungs = ladder.ladder(devices, device="cpu", global_batch=66 if devices == 3 else 64)
    assert [r.label for r in rungs] == labels
    assert len({(r.global_batch, r.threads, r.lr, r.seed, r.model) for r in rungs}) == 1


def test_the_full_ladder_goes_on_to_half_formats_and_a_larger_batch(monkeypatch):
    monkeypatch.setattr(device, "dtypes", lambda kind=None: {"float32": 1, "bfloat16": 1.5, "float16": 2.5})
    base, *_, top, half, last, grown = ladder.ladder(2, full=True, device="cpu", epochs=10)
    assert (half.label, last.label, grown.label) == (
        "DDP ×2 · O1", "DDP ×2 · O1 · channels last", "DDP ×2 · batch 128"
    )  # fmt: skip
    assert half.but(precision="fp32") == top and last.but(channels_last=False) == half
    assert (grown.local_batch, grown.peak_lr, grown.lr_warmup_epochs) == (64, 2 * base.lr, 1)
    assert ladder.ladder(2, full=True, device="cpu", precision="bf16")[-1].precision == "O1-bf16"
    monkeypatch.setattr(device, "dtypes", lambda kind=None: {"float32": 1, "bfloat16": 0.5})
    assert {r.precision for r in ladder.ladder(2, full=True, device="cpu")} == {"fp32"}


def test_the_ladder_rounds_the_global_batch_to_what_can_be_split():
    assert {r.global_batch for r in ladder.ladder(3, device="cpu", global_batch=64)} == {63}


@pytest.mark.parametrize("devices", [0, -1, 2.5, "2", True])
def test_the_ladder_refuses_a_bad_number_of_devices(devices):
    with pytest.raises(ValueError, match="devices is"):
        ladder.ladder(devices, device="cpu")


def test_compare_refuses_what_does_not_go_together():
    config = RunConfig()
    for configs, more in (([config], dict(lr=1)), ([config, config], {}), ([], {}), (["ddp"], {})):
        with pytest.raises((TypeError, ValueError)):
            ladder.compare(configs, **more)


def test_more_devices_than_the_machine_has(monkeypatch):
    monkeypatch.setattr(device, "machine", lambda kind=None: device.Machine("cuda", 2, "planted", "nccl", 8, 4))
    with pytest.raises(ValueError, match="DDP ×4 needs 4 devices, this machine has 2"):
        RunConfig(strategy="ddp", nproc_per_node=4).check_machine()


def test_lessons_for_several_devices_fall_back_to_the_cpu(monkeypatch):
    monkeypatch.delenv("HELPERS_DEVICE", raising=False)
    monkeypatch.setattr(device, "accelerator_kind", lambda: "cuda")
    monkeypatch.setattr(device, "_count", lambda kind: 1)
    monkeypatch.setattr(device, "_name", lambda kind: kind)
    monkeypatch.setattr(device, "os", _os_with_own_environment())
    assert device.machine().kind == "cuda" and device.accelerator_count() == 1
    assert device.choose(2).kind == "cpu" and device.accelerator_count() == 0


def _os_with_own_environment():
    import os
    from types import SimpleNamespace

    return SimpleNamespace(**{**vars(os), "environ": {}})

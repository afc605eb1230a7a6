"""RunConfig refuses what cannot work, says what is allowed, and works out the rest."""

import os
import pickle
from types import SimpleNamespace

import pytest
from torch import nn

from helpers import RunConfig, config, device


@pytest.mark.parametrize(
    "settings, fields, hint",
    [
        (dict(strategy="dpp"), "strategy", "Did you mean 'ddp'"),
        (dict(precision="O7"), "precision", "'fp32', 'fp16-mixed'"),
        (dict(device="gpu"), "device", "'cuda', .*None"),
        (dict(model=nn.Linear(1, 1), data="digit"), "data", "Did you mean 'digits'"),
        (dict(model=3), "model", "a function"),
        (dict(data=(range(3), 5)), "data", r"a pair \(train, test\)"),
        (dict(nproc_per_node=0), "nproc_per_node", "1 or more"),
        (dict(nproc_per_node=2.0), "nproc_per_node", "whole number"),
        (dict(steps=5, epochs=1), "epochs steps", "one of the two"),
        (dict(lr=0), "lr", "above 0"),
        (dict(momentum=1), "momentum", "below 1"),
        (dict(loss="mse"), "loss", "a function"),
        (dict(nproc_per_node=2), "strategy nproc_per_node", "'ddp'"),
        (dict(strategy="ddp", nproc_per_node=3, global_batch=64), "global_batch nproc_per_node", "63 or 66"),
        (dict(strategy="ddp", nproc_per_node=2, global_batch=64, local_batch=64), "global_batch local_batch", "= 128"),
        (dict(resume=True), "checkpoint_dir", ""),
        (dict(sync_batch_norm=True), "sync_batch_norm strategy", "'ddp' or 'zero1' or 'fsdp'"),
        (dict(optimizer="adamw", compiler="xla"), "optimizer compiler", ""),
        (dict(nnodes=2), "strategy nnodes", "'ddp'"),
        (dict(lr_warmup_epochs=3, epochs=2), "lr_warmup_epochs epochs", ""),
        (dict(evaluate_every=1, evaluate=False), "evaluate_every evaluate", ""),
        (dict(channels_last="yes"), "channels_last", "True or False"),
        (dict(model="gpt"), "model data", "'tokens'"),
        (dict(model="resnet8", data="tokens"), "model data", "'gpt'"),
        (dict(model="gpt", data="tokens", compiler="xla"), "model compiler", ""),
        (dict(strategy="data_parallel", compiler="auto"), "compiler strategy", "'none'"),
        (dict(strategy="data_parallel", activation_checkpointing="full"), "activation_checkpointing strategy", "'ddp'"),
        (dict(strategy="zero1", compiler="xla"), "compiler strategy", ""),
        (dict(compiler="xla", precision="O3"), "precision compiler", "fp32, fp16-mixed, bf16-mixed"),
        (dict(strategy="fsdp", precision="O2-bf16"), "precision strategy model", "'bf16-mixed'"),
        (dict(strategy="ddp", shard="hybrid"), "shard strategy", "'fsdp'"),
        (dict(strategy="fsdp", nproc_per_node=5, global_batch=65, shard="hybrid"), "shard nproc_per_node", "5 rank"),
        (dict(strategy="fsdp", nproc_per_node=2, shard="hybrid"), "shard nproc_per_node", "2 rank"),
    ],
)
def test_what_cannot_be_names_its_fields(settings, fields, hint):
    with pytest.raises(config.ConfigError, match=hint or None) as caught:
        RunConfig(**settings)
    assert caught.value.fields == tuple(fields.split())
    assert pickle.loads(pickle.dumps(caught.value)).fields == caught.value.fields


@pytest.mark.parametrize("name", [name for name, one in config.SETTINGS.items() if one.type in (int, float)])
def test_a_number_is_not_negative_and_nothing_else(name):
    for value in (-1, True, "1", float("nan")):
        with pytest.raises(config.ConfigError, match=f"{name}.* is {value!r}"):
            RunConfig(**{name: value})


def test_batches_follow_from_each_other():
    assert RunConfig().global_batch == RunConfig().local_batch == 64
    by_global = RunConfig(strategy="ddp", nproc_per_node=4, global_batch=128)
    by_local = RunConfig(strategy="ddp", nproc_per_node=4, local_batch=32)
    assert (by_global.local_batch, by_local.global_batch) == (32, 128)
    assert by_local.processes == 4 and RunConfig(strategy="data_parallel", nproc_per_node=2).processes == 1
    by_local = RunConfig(strategy="ddp", nproc_per_node=2, local_batch=16, accumulation=4)
    by_global = RunConfig(strategy="ddp", nproc_per_node=2, global_batch=128, accumulation=4)
    assert (by_local.global_batch, by_global.local_batch) == (128, 16)
    assert by_local.label == "DDP ×2 · 4 micro-batches"
    assert by_global.but(accumulation=1).local_batch == 64


@pytest.mark.parametrize("given, stands", [("O0", "fp32"), ("bf16", "bf16-mixed"), ("O2", "fp16-masters")])
def test_a_precision_has_one_name_in_records_and_labels(given, stands):
    chosen = RunConfig(precision=given, channels_last=True)
    assert chosen.precision == stands
    assert chosen.label == ("baseline · channels last" if stands == "fp32" else f"baseline · {stands} · channels last")
    assert RunConfig(strategy="ddp", nproc_per_node=2, compiler="xla").label == "DDP ×2 · XLA"


def test_more_threads_than_cores_are_warned_of():
    cores = device.usable_cores()
    assert device.oversubscribed(cores, 1, "cpu") == ""
    assert device.oversubscribed(2 * cores, 1, "cpu") and device.oversubscribed(cores, 2, "cpu")


def test_a_changed_copy_keeps_the_global_batch():
    base = RunConfig(global_batch=96, steps=7, label="mine")
    other = base.but(strategy="ddp", nproc_per_node=3)
    assert (other.global_batch, other.local_batch, other.steps, other.label) == (96, 32, 7, "DDP ×3")
    assert base.but(epochs=2).steps is None and base.but(local_batch=8).global_batch == 8


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

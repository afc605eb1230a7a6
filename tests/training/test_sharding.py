"""ZeRO-1, FSDP2 and activation checkpointing: the same training with less on each rank, and what is refused."""

import copy
import re
import shutil
from functools import cache

import pytest
import torch
from shards import REFUSED, needs_fsdp
from torch import nn
from toys import float64_gpt, float64_net, smooth_net, toy_data, toy_text

import helpers
from helpers import RankError, RunConfig, launch, releases
from helpers.records import read
from helpers.training import checkpoint, evaluation, memory, models, recompute, sharding
from helpers.training.loop import train

STEPS = 20
SGD = dict(model=float64_net, data=toy_data, lr=0.05, global_batch=32)


def float32_gpt():
    return float64_gpt().float()


def train_and_test_unevenly(config):
    """Train; ranks then test different numbers of batches, which must not keep one waiting for the others."""
    evaluation.BATCH = 6  # of 37 samples two ranks have 19 and 18
    return train(config)


def measured(**settings):
    if REFUSED and settings.get("strategy") == "fsdp":
        pytest.skip(REFUSED)
    config = RunConfig(
        **{
            "model": float64_gpt,
            "data": toy_text,
            "optimizer": "sgd" if "model" in settings else "adamw",
            "lr": 0.01,
            "global_batch": 16,
            "steps": STEPS,
            "threads": 1,
            **settings,
        }
    )
    return launch(train_and_test_unevenly, config.processes, config, timeout=600)[0]


@cache  # several tests compare with the same run
def alone(**settings):
    return measured(**settings)


def losses(of):
    return torch.tensor(of["samples"]["loss"], dtype=torch.float64)


def follows(found, base, tolerance=1e-10):
    assert losses(base)[0] > losses(base)[-1], "the toy problem is not being learnt"
    assert (losses(found) - losses(base)).abs().max() <= tolerance
    assert found["evaluation"]["count"] == 37 and found["evaluation"]["correct"] == base["evaluation"]["correct"]


def kinds(of, kind):
    return [of_rank[kind] for of_rank in of["memory_bytes"]]


def test_fsdp_follows_one_process_and_holds_a_half_of_all():
    found, base = measured(strategy="fsdp", nproc_per_node=2, accumulation=2, clip_norm=0.5), alone(clip_norm=0.5)
    follows(found, base)
    for kind in ("parameters", "gradients", "optimizer state"):
        assert max(kinds(found, kind)) <= 0.51 * kinds(base, kind)[0] < kinds(base, kind)[0] == max(kinds(base, kind))
    assert (losses(base) - losses(alone())).abs().max() > 1e-4, "the limit of the norm should have been felt"


def test_fsdp_averages_gradients_in_fp32_too():
    """With SGD, which feels a factor; float64 is reduced by another operation (pytorch issue 162338)."""
    settings = dict(model=float32_gpt, lr=0.5)
    follows(measured(strategy="fsdp", nproc_per_node=2, **settings), alone(**settings), 1e-4)


def test_zero1_follows_one_process_and_holds_a_half_of_the_state():
    found, base = measured(strategy="zero1", nproc_per_node=2), alone()
    follows(found, base)
    assert kinds(found, "parameters") == 2 * kinds(base, "parameters")
    assert sum(kinds(found, "optimizer state")) == kinds(base, "optimizer state")[0]
    assert max(kinds(found, "optimizer state")) <= 0.6 * kinds(base, "optimizer state")[0]


WAYS = [
    dict(strategy="zero1"),
    dict(strategy="zero1", accumulation=2, clip_norm=0.5),
    dict(strategy="fsdp"),
    dict(strategy="fsdp", shard="grad_op", accumulation=2),
    dict(strategy="fsdp", offload=True, clip_norm=0.5),
    dict(strategy="fsdp", activation_checkpointing="full"),
    dict(strategy="fsdp", activation_checkpointing="selective", accumulation=2, clip_norm=0.5),
    dict(strategy="zero1", activation_checkpointing="selective"),
    dict(strategy="ddp", activation_checkpointing="full"),
]


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: " ".join(map(str, way.values())))
@pytest.mark.parametrize("net", [{}, SGD], ids=["gpt", "convolutions"])
def test_every_way_follows_one_process(way, ranks, net):
    base = {key: value for key, value in way.items() if key == "clip_norm"}
    follows(measured(**way, **net, nproc_per_node=ranks), alone(**net, **base))


@pytest.mark.long
@pytest.mark.parametrize(
    "way, tolerance",
    [
        ({}, 1e-10),
        (dict(accumulation=2, clip_norm=0.5), 1e-10),
        (dict(activation_checkpointing="full"), 1e-10),
        (dict(model=float32_gpt, lr=0.5), 1e-4),
    ],
)
def test_a_hybrid_of_two_replicas_follows_one_process(way, tolerance):
    found = measured(strategy="fsdp", shard="hybrid", nproc_per_node=4, **way)
    base = alone(**{key: value for key, value in way.items() if key in ("clip_norm", "model", "lr")})
    follows(found, base, tolerance)
    assert max(kinds(found, "parameters")) <= 0.51 * kinds(base, "parameters")[0], "two ranks share a replica"


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["zero1", "fsdp"])
@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-masters", "fp16-mixed", "fp16-masters"])
def test_half_precision_follows_fp32_to_the_precision_of_its_format(strategy, precision):
    """Near, not equal: bf16 has 8 bits of precision, fp16 11, so a loss of 4 is known to about 0.01."""
    floats = dict(model=float32_gpt, optimizer="adamw")
    half = measured(strategy=strategy, nproc_per_node=2, precision=precision, clip_norm=0.5, **floats)
    base = alone(clip_norm=0.5, **floats)
    assert 1e-7 < (losses(half) - losses(base)).abs().max() <= 0.05
    ddp = measured(strategy="ddp", nproc_per_node=2, precision=precision, clip_norm=0.5, **floats)
    assert (losses(half) - losses(ddp)).abs().max() <= 0.02, "DDP at this level computes nearly the same"


def norm_net():
    return smooth_net(nn.BatchNorm2d)


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["zero1", "fsdp"])
def test_synchronised_norm_under_shards(strategy):
    net = dict(SGD, model=norm_net)
    follows(measured(strategy=strategy, nproc_per_node=2, sync_batch_norm=True, **net), alone(**net), 1e-8)


@pytest.mark.long
@pytest.mark.parametrize("strategy, ranks", [("fsdp", 2), ("zero1", 2), ("baseline", 1)])
@pytest.mark.parametrize("again", [None, "full"])
def test_compiled_blocks_follow_eager_ones(strategy, ranks, again):
    settings = dict(model=float32_gpt, optimizer="adamw")
    found = measured(
        strategy=strategy, nproc_per_node=ranks, compiler="inductor", activation_checkpointing=again, **settings
    )
    assert (losses(found) - losses(alone(**settings))).abs().max() <= 1e-4
    assert found["compiler"]["graphs"] >= 1 and kinds(found, "activations") == [None] * ranks


# -- recomputing --------------------------------------------------------------------------


def one_step(what, make=float64_gpt, data=toy_text):
    torch.manual_seed(0)
    model = make()
    names = [name for name, _ in model.named_parameters()]
    recompute.prepare(model, what)
    assert [name for name, _ in model.named_parameters()] == names
    inputs, labels = (torch.stack(part) for part in zip(*(data()[0][i] for i in range(8)), strict=True))
    with memory.Activations(model) as activations:
        loss = models.loss_of(model)(model(inputs), labels)
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}, activations.bytes, model


def test_recomputing_changes_no_gradient_and_keeps_less():
    (loss, gradients, most, _), *others = (one_step(what) for what in (None, "selective", "full"))
    for other_loss, other_gradients, _, _ in others:
        assert torch.equal(loss, other_loss)
        assert all(torch.equal(gradients[name], other_gradients[name]) for name in gradients)
    assert most > others[0][2] > others[1][2] > 0


def test_batch_norm_counts_a_batch_once():
    plain, again = (one_step(what, norm_net, toy_data)[-1] for what in (None, "full"))
    assert "forward" in vars(again[0]), "nothing is recomputed"
    assert all(torch.equal(a, b) for a, b in zip(plain.buffers(), again.buffers(), strict=True))


def test_a_model_without_parts_is_not_recomputed():
    with pytest.raises(ValueError, match="Linear has no children with weights of their own"):
        recompute.prepare(nn.Linear(2, 2), "full")


def test_which_modules_are_sharded_one_by_one():
    model = float64_gpt()
    assert sharding.units(model) == list(model.blocks)
    net = models.build("resnet8", 10)
    assert sharding.units(net) == list(net.stages), "a convolution of 400 weights is not worth a message"
    shared = copy.deepcopy(model.blocks)
    shared[1].mlp.up.weight = shared[0].mlp.up.weight
    assert sharding.units(nn.Sequential(*shared, *model.blocks)) == list(model.blocks)
    assert sharding.units(nn.Linear(3, 3)) == []


# -- checkpoints --------------------------------------------------------------------------

THEN = (("zero1", 1), ("zero1", 4), ("fsdp", 1), ("fsdp", 2), ("fsdp", 4), ("ddp", 2), ("baseline", 1))
PAIRS = [
    (dict(strategy=first, nproc_per_node=2), dict(strategy=then, nproc_per_node=ranks))
    for first in ("zero1", "fsdp", "ddp")
    for then, ranks in THEN
]
SAVED = [
    (dict(strategy="fsdp", nproc_per_node=2), {}),
    *(pytest.param(*pair, marks=pytest.mark.long) for pair in PAIRS),
]


@pytest.mark.parametrize("first, then", SAVED)
@pytest.mark.parametrize("net", [{}, pytest.param(SGD, marks=pytest.mark.long)], ids=["adamw", "sgd"])
def test_a_run_goes_on_from_shards_on_other_ranks(first, then, net, tmp_path):
    measured(**first, **net, steps=10, checkpoint_dir=str(tmp_path), checkpoint_every=5)
    assert [path.is_dir() for path in checkpoint.found(tmp_path)] == [first["strategy"] == "fsdp"] * 2
    rest = measured(**then, **net, checkpoint_dir=str(tmp_path), resume=True)
    assert rest["first_step"] == 10
    assert (losses(rest) - losses(alone(**net))[10:]).abs().max() <= 1e-10


@pytest.mark.long
@pytest.mark.parametrize("precision", ["bf16-masters", "fp16-mixed"])
def test_copies_in_fp32_and_the_scale_are_saved_too(precision, tmp_path):
    settings = dict(model=float32_gpt, precision=precision, strategy="fsdp", nproc_per_node=2)
    whole = measured(**settings)
    measured(**settings, steps=10, checkpoint_dir=str(tmp_path), checkpoint_every=10)
    rest = measured(**settings, checkpoint_dir=str(tmp_path), resume=True)
    assert rest["samples"]["loss"] == whole["samples"]["loss"][10:]
    assert rest["samples"]["loss_scale"] == whole["samples"]["loss_scale"][10:]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    settings = dict(strategy="fsdp", nproc_per_node=2, steps=4, checkpoint_dir=str(folder), checkpoint_every=2)
    measured(**settings, evaluate=False)
    return folder


@pytest.mark.parametrize("harm", ["altered", "missing", "no run.pt"])
def test_damage_is_named_and_the_one_before_is_used(saved, tmp_path, harm):
    folder = shutil.copytree(saved, tmp_path / "copy")
    newest = checkpoint.found(folder)[0]
    path = newest / ("run.pt" if harm == "no run.pt" else "__1_0.distcp")
    data = bytearray(path.read_bytes())
    path.unlink()
    if harm == "altered":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    with pytest.warns(UserWarning, match=f"{newest.name}/{path.name} is damaged.*Trying the one before"):
        assert checkpoint.latest(folder)["step"] == 2


def test_a_folder_that_was_not_finished_is_no_checkpoint(saved, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "copy")
    newest, before = checkpoint.found(folder)
    newest.rename(newest.with_name(f".{newest.name}.part"))
    assert checkpoint.found(folder) == [before] and checkpoint.latest(folder)["step"] == 2
    settings = dict(strategy="fsdp", nproc_per_node=1, steps=4, checkpoint_dir=str(folder), checkpoint_every=4)
    measured(**settings, resume=True, evaluate=False)
    assert [path.name for path in folder.iterdir() if path.name[0] == "."] == [], "what a killed run left is removed"
    assert checkpoint.latest(folder)["step"] == 4


def wider_gpt():
    return models.gpt(layers=2, width=32, heads=2, vocabulary=60, length=16).double()


wider_gpt.__qualname__ = float64_gpt.__qualname__  # the same name, and another model


@pytest.mark.parametrize("then", [dict(strategy="fsdp", nproc_per_node=2), pytest.param({}, marks=pytest.mark.long)])
def test_a_checkpoint_of_another_model_is_refused(saved, then):
    with pytest.raises(
        RankError, match=r"of another run: embedding.tokens.weight has \[60, 16\] \(this run: \[60, 32\]\)"
    ):
        measured(**then, model=wider_gpt, optimizer="adamw", checkpoint_dir=str(saved), resume=True)
    with pytest.raises(RankError, match=re.escape("of another run: model 'float64_gpt' (this run: 'float32_gpt')")):
        measured(**then, model=float32_gpt, optimizer="adamw", checkpoint_dir=str(saved), resume=True)


# -- records and refusals -----------------------------------------------------------------


@needs_fsdp
def test_the_record_says_what_each_rank_held(tmp_path, monkeypatch):
    monkeypatch.setenv("HELPERS_RESULTS", str(tmp_path))
    helpers.run(
        RunConfig(
            model=float64_gpt,
            data=toy_text,
            strategy="fsdp",
            nproc_per_node=2,
            steps=3,
            threads=1,
            global_batch=16,
            evaluate=False,
        )
    )
    (record,) = read.read().records
    weights = 8 * sum(p.numel() for p in float64_gpt().parameters())
    row = read.row(record)
    assert row["parameters_bytes"] == row["gradients_bytes"] == row["optimizer_state_bytes"] <= 0.51 * weights
    assert row["activations_bytes"] > 0 and len(record["measured"]["memory_bytes"]) == 2
    assert record["label"] == "FSDP ×2" and record["measured"]["parameters"] == weights / 8


def test_a_release_whose_fsdp_needs_a_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(releases, "version_of", lambda package: "2.7.1")
    with pytest.raises(ValueError, match="2.8 .*2.7.1"):
        RunConfig(strategy="fsdp", device="cpu").check_machine()
    assert releases.fsdp_refusal("cuda") == ""

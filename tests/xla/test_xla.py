"""Training through XLA: what can be tested without its environment, and real runs where it is installed."""

import sys
from pathlib import Path

import pytest
import torch
from xla_ranks import compilations_of, exact, join, several_steps, smooth, without_average

from helpers import RankError, RunConfig, launch
from helpers.config import ConfigError
from helpers.data import sets
from helpers.training import loop as train
from platforms import xla
from platforms.xla import calls, loop

FOLDER = Path(xla.__file__).parent
SMALL = dict(data="digits", global_batch=64, steps=10, threads=1)


def real(test):
    """Marks a test that needs the environment of `make xla`."""
    reason = f"there is no XLA environment ({xla.FOLDER}): make xla"
    return pytest.mark.xla(pytest.mark.skipif(not xla.is_here(), reason=reason)(test))


def on_xla(fn, nprocs, *args):
    return launch(fn, nprocs, *args, python=xla.python(), env=xla.environment(), threads=1, timeout=1800)


@pytest.fixture(scope="module", autouse=True)
def digits():
    sets.ensure("digits")


# Without the environment


def test_the_missing_environment_is_explained(monkeypatch, tmp_path):
    monkeypatch.setattr(xla, "project_root", lambda: tmp_path)
    monkeypatch.delenv(xla.VARIABLE, raising=False)
    assert not xla.is_here()
    with pytest.raises(xla.XlaMissing, match=r"no \.venv-xla here.*7 GB.*Linux on x86-64.*`make xla`"):
        xla.python()
    monkeypatch.setenv(xla.VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match=f"{xla.VARIABLE} names .*nowhere, where no interpreter is"):
        xla.python()
    monkeypatch.setenv(xla.VARIABLE, sys.executable)
    assert xla.is_here() and xla.python() == Path(sys.executable)


@pytest.mark.parametrize(
    "settings, field",
    [
        (dict(strategy="data_parallel", nproc_per_node=2), "strategy"),
        (dict(strategy="ddp", nproc_per_node=2, sync_batch_norm=True), "sync_batch_norm"),
        (dict(channels_last=True), "channels_last"),
        (dict(precision="fp16-masters"), "precision"),
        (dict(precision="bf16-true"), "precision"),
        (dict(checkpoint_dir="x", checkpoint_every=5), "checkpoint_dir"),
        (dict(checkpoint_dir="x", resume=True), "checkpoint_dir"),
        (dict(device="cuda"), "device"),
    ],
)
def test_what_the_loop_cannot_do_is_refused(settings, field):
    with pytest.raises(ConfigError) as caught:
        RunConfig(compiler="xla", **settings)
    assert {field, "compiler"} <= {*caught.value.fields}


def check_examples(outcome, where):
    assert {i for i, call in enumerate(calls.CALLS) if call.where == where} == set(outcome)
    assert {calls.CALLS[i].then: wrong for i, wrong in outcome.items() if wrong} == {}


@pytest.mark.long
def test_todays_calls_run_here():
    check_examples(launch(calls.run, 1, "main", timeout=1800)[0], "main")


def test_the_step_with_ddp_keeps_ranks_together():
    (first, one), (second, two) = launch(several_steps, 2, "ddp", threads=1, timeout=1800)
    assert torch.equal(one, two) and first != second


# With it


@real
def test_the_step_through_xla_does_the_same():
    """Both files of the diff run; ten times the rounding of fp32 is allowed."""
    there = launch(several_steps, 2, "ddp", threads=1, timeout=1800)
    here = on_xla(several_steps, 2, "xla")
    assert torch.equal(here[0][1], here[1][1])
    for (losses, weights), (expected, theirs) in zip(here, there, strict=True):
        assert losses == pytest.approx(expected, rel=1e-5)
        assert torch.allclose(weights, theirs, rtol=1e-5, atol=1e-6)


def both(**settings):
    """What was measured of a run by helpers.training.loop and through XLA."""
    config = RunConfig(**{**SMALL, **settings})
    plain = launch(train.train, config.processes, config, threads=1, timeout=1800)
    return plain[0], on_xla(loop.train, config.processes, config)[0]


def check_same(plain, ours, tolerance):
    assert len(ours["samples"]["loss"]) == 10
    assert ours["samples"]["loss"] == pytest.approx(plain["samples"]["loss"], rel=tolerance)


@real
@pytest.mark.parametrize("ranks", [1, 2])
def test_ten_steps_have_the_losses_of_the_eager_run(ranks):
    plain, ours = both(
        model=exact,
        strategy="ddp" if ranks == 2 else "baseline",
        nproc_per_node=ranks,
        lr_warmup_epochs=0.2,
        schedule="cosine",
        accumulation=2,
    )
    check_same(plain, ours, 1e-9)
    # BatchNorm's running variance is another one there (see XlaRun); it is only used here.
    assert ours["evaluation"]["loss"] == pytest.approx(plain["evaluation"]["loss"], rel=1e-3)
    assert set(plain) <= set(ours) and set(plain["samples"]) == set(ours["samples"])
    compiler = ours["compiler"]
    first, *later = compiler["compilations_by_step"]
    assert first == ranks and later == [0] * 9  # with two, the gradients leave the device between two graphs
    assert compiler["compile_s"] > 0 and compiler["compilations"] >= first


@real
@pytest.mark.parametrize("precision, tolerance", [("fp32", 1e-5), ("bf16-mixed", 5e-3), ("fp16-mixed", 1e-3)])
def test_precisions(precision, tolerance):
    plain, ours = both(model=smooth, strategy="ddp", nproc_per_node=2, precision=precision, clip_norm=0.5)
    check_same(plain, ours, tolerance)
    assert ours["loss_scale"] == plain["loss_scale"]
    assert ours["evaluation"]["count"] == plain["evaluation"]["count"] == 360
    assert ours["evaluation"]["loss"] == pytest.approx(plain["evaluation"]["loss"], rel=tolerance)


@real
def test_losses_differ_where_gradients_are_not_averaged():
    """The comparisons above can fail."""

    config = RunConfig(**SMALL, model=smooth, strategy="ddp", nproc_per_node=2)
    expected = launch(train.train, 2, config, threads=1, timeout=1800)[0]["samples"]["loss"]
    assert on_xla(without_average, 2, config)[0]["samples"]["loss"] != pytest.approx(expected, rel=1e-3)


@real
def test_each_new_shape_costs_one_compilation():
    assert on_xla(compilations_of, 1, [16, 16, 12, 12, 16, 8, 12]) == [[1, 1, 2, 2, 2, 3, 3]]


@real
@pytest.mark.parametrize("method, size", [("xla://", 1), ("env://", 2)])
def test_a_group_that_would_train_alone_is_refused(method, size):
    assert on_xla(join, 2, method, False) == [(size, 1.0)] * 2  # the trap: a sum over two ranks is 2
    with pytest.raises(RankError, match="2 processes were started .WORLD_SIZE., but XLA on CPU connects 1.*gloo"):
        on_xla(join, 2, method, True)


@real
def test_todays_calls_run_there():
    check_examples(on_xla(calls.run, 1, "xla")[0], "xla")

"""Studies: what is recorded, that it can be stopped, and what the committed ones hold."""

import json
from statistics import fmean

import pytest
from shards import needs_fsdp
from toys import float64_net, toy_data

import helpers
from helpers import RunConfig, measure
from helpers import __main__ as cli
from helpers.comparison import run, studies
from helpers.records import store

BASE = RunConfig(model=float64_net, data=toy_data, steps=12, global_batch=32, evaluate_every=1, device="cpu", threads=1)


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("HELPERS_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("HELPERS_PROGRESS", "plain")
    monkeypatch.setattr(studies, "project_root", lambda: tmp_path / "kit")
    monkeypatch.setitem(studies.STUDIES, "toy", toy_study)


def toy_study():
    rows = {"one": BASE, "two": BASE.but(strategy="ddp", nproc_per_node=2)}
    return studies.labelled(rows, seeds=(0, 1))


def test_a_study_is_recorded_and_read_again(capsys, tmp_path):
    with pytest.raises(FileNotFoundError, match="run `python -m helpers study toy`"):
        studies.load("toy")
    with pytest.raises(ValueError, match="there is no study 'toys'; there are batch_and_accuracy"):
        studies.load("toys")
    assert cli.main(["study", "toy", "--keep"]) == 0
    assert "4 runs" in capsys.readouterr().out
    study = studies.load("toy")
    made = [(r["label"], r["config"]["seed"]) for r in study.records]
    assert made == [("one", 0), ("two", 0), ("one", 1), ("two", 1)]
    assert {label: len(of) for label, of in study.groups().items()} == {"one": 2, "two": 2}
    assert list(study.groups("two")) == ["two"] and study.one("two")["config"]["seed"] == 0
    assert store.code_state()["training_sha256"][:8] in study.made and study.origin == study.made
    kept = tmp_path / "kit" / "recorded" / "studies" / "toy.json"
    assert json.loads(kept.read_text()) == json.loads(study.path.read_text())
    study.path.unlink()
    assert studies.load("toy").path == kept, "without one of the reader's own, that of the kit is shown"


def test_a_stopped_study_goes_on_where_it_was(monkeypatch):
    real, runs = run.run, []

    def third_is_stopped(config, **options):
        runs.append((config.label, config.seed))
        if len(runs) == 3:
            raise KeyboardInterrupt
        return real(config, **options)

    monkeypatch.setattr(run, "run", third_is_stopped)
    with pytest.raises(KeyboardInterrupt):
        studies.record("toy")
    with pytest.raises(FileNotFoundError):
        studies.load("toy")  # half a study is none
    study = studies.record("toy")
    assert runs[2:] == [("one", 1), ("one", 1), ("two", 1)] and len(study.records) == 4
    studies.record("toy")
    assert len(runs) == 5, "nothing is left to run"


def test_runs_of_other_code_are_made_again(monkeypatch):
    monkeypatch.setitem(studies.STUDIES, "toy", lambda: toy_study()[:1])
    studies.record("toy")
    state = {**store.code_state(), "training_sha256": "0" * 64}
    monkeypatch.setattr(store, "hashes", lambda: state)
    assert studies.load("toy").origin.endswith("; the kit's training code has changed since")
    monkeypatch.setattr(store, "code_state", lambda: state)
    assert {r["environment"]["code"]["training_sha256"] for r in studies.record("toy").records} == {"0" * 64}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=needs_fsdp if name == "sharding" else ())
        for name in studies.STUDIES
        if name not in ("compiler", "xla")
    ],
)
def test_every_study_can_be_run_on_this_machine(name):
    configs = studies.STUDIES[name]()
    keys = [(c.label, c.seed) for c in configs]
    assert len(set(keys)) == len(keys)
    for config in configs:
        config.check_machine()


def test_one_thing_changes_between_the_rows_of_the_batch_study():
    configs = {c.label: c for c in studies.STUDIES["batch_and_accuracy"]() if c.seed == 0}
    assert {c.global_batch for label, c in configs.items() if label.startswith("4 ranks")} == {64}
    naive, linear = configs["4 ranks, naive"], configs["4 ranks, linear"]
    assert linear.peak_lr == 4 * naive.peak_lr
    assert linear.but(lr_scaling="none", label=naive.label) == naive
    high, warm = configs["4 ranks, high peak + cooldown"], configs["4 ranks, high peak + warm-up + cooldown"]
    assert warm.but(lr_warmup_epochs=0, label=high.label) == high
    assert configs["4 ranks, four times the epochs"].epochs == 4 * naive.epochs


def test_both_optimizers_have_as_many_rates():
    assert {len(rates) for rates in studies.RATES.values()} == {6}
    configs = studies.STUDIES["optimizers"]()
    assert {(c.optimizer, c.global_batch) for c in configs} == {(o, b) for o in ("sgd", "adamw") for b in (16, 128)}


def record(batch, precision, last, rate, model="resnet18"):
    config = dict(model=model, local_batch=batch, global_batch=batch, precision=precision, channels_last=last)
    rates = [share * rate for share in (0.8, 0.9, 1, 1.1, 1.2)]
    samples = {"step_time_s": [batch / rate for rate in rates]}
    return {"config": config, "measured": {"images_per_s": measure.summary(rates), "samples": samples}}


def test_speed_by_batch_is_relative_to_fp32_at_the_same_batch():
    records = [
        record(64, "fp32", False, 100),
        record(1, "fp32", False, 10),
        record(64, "bf16-mixed", True, 180),
        record(1, "bf16-mixed", True, 8),
        record(256, "bf16-mixed", True, 500),
        record(64, "fp32", True, 120),
        record(64, "bf16-mixed", True, 9, "resnet50"),
    ]
    series = studies.speed_by_batch(records, "resnet18")
    assert list(series) == ["bf16-mixed · channels last", "fp32 · channels last"]
    points = series["bf16-mixed · channels last"]
    assert [p["batch"] for p in points] == [1, 64], "without fp32 at that batch there is no ratio"
    assert [points[1][key] for key in ("ratio", "low", "high")] == pytest.approx([1.8, 1.44, 2.16])


def test_kept_studies_are_whole():
    """The committed data: every run completed, by one code a study, with as many seeds as the study asks for."""
    root = helpers.paths.project_root() / "recorded" / "studies"
    for name in ("batch_and_accuracy", "optimizers", "time_to_accuracy", "precision", "precision_by_batch"):
        study = studies.read(name, root / f"{name}.json")
        assert {r["status"] for r in study.records} == {"completed"}
        assert len({r["environment"]["code"]["training_sha256"] for r in study.records}) == 1
        timed = {(r["measured"]["step_time_s"] or {"n": 0})["n"] >= 5 for r in study.records}
        assert timed == {name not in studies.UNTIMED}
        seeds = [{r["config"]["seed"] for r in records} for records in study.groups().values()]
        assert name.startswith("precision") or min(map(len, seeds)) >= (2 if name == "optimizers" else 3)


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs_fsdp if name == "sharding" else ()) for name in studies.REPEATED]
)
def test_todays_code_learns_as_a_kept_study_did(name):
    """So a study need not be recorded again for a change of the code that changes nothing it learns."""
    path = helpers.paths.project_root() / "recorded" / "studies" / f"{name}.json"
    kept = studies.read(name, path).one(studies.REPEATED[name])
    seed = kept["config"]["seed"]
    [config] = [c for c in studies.STUDIES[name]() if (c.label, c.seed) == (kept["label"], seed)]
    again = run.run(config, group="again")["measured"]["samples"]["loss"][:10]  # later, rounding has grown
    assert again == pytest.approx(kept["measured"]["samples"]["loss"][:10], rel=1e-3)


def test_the_kept_study_shows_the_trap_and_the_way_out():
    """What docs/accuracy.md and notebook 05 say in words: four naive ranks lose much, the repaired ones do not."""
    path = helpers.paths.project_root() / "recorded" / "studies" / "batch_and_accuracy.json"
    groups = studies.read("batch_and_accuracy", path).groups()
    mean = {label: fmean(r["measured"]["evaluation"]["accuracy"] for r in of) for label, of in groups.items()}
    assert mean["1 rank"] - mean["4 ranks, naive"] >= 0.03
    assert mean["1 rank"] - mean["4 ranks, linear"] <= 0.015
    assert mean["4 ranks, high peak + warm-up + cooldown"] > mean["4 ranks, high peak + cooldown"]
    assert mean["local batch of 2, SyncBatchNorm"] > mean["local batch of 2, local statistics"]

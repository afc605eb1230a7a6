"""Studies: what is recorded, that it can be stopped, and what the committed ones hold."""

import json

import pytest
from shards import needs_fsdp
from toys import float64_net, toy_data

from benchmarks import studies
from helpers import RunConfig, paths
from helpers.comparison import run
from helpers.comparison import studies as recorded
from helpers.records import store

BASE = RunConfig(model=float64_net, data=toy_data, steps=12, global_batch=32, evaluate_every=1, device="cpu", threads=1)


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("HELPERS_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("HELPERS_PROGRESS", "plain")
    monkeypatch.setattr(recorded, "project_root", lambda: tmp_path / "kit")
    monkeypatch.setitem(studies.STUDIES, "toy", toy_study)


def toy_study():
    rows = {"one": BASE, "two": BASE.but(strategy="ddp", nproc_per_node=2)}
    return studies.labelled(rows, seeds=(0, 1))


def test_a_study_is_recorded_and_read_again(capsys, tmp_path):
    with pytest.raises(FileNotFoundError, match="run `python -m benchmarks.studies toy`"):
        recorded.load("toy")
    studies.main(["toy", "--keep"])
    assert "4 runs" in capsys.readouterr().out
    study = recorded.load("toy")
    made = [(r["label"], r["config"]["seed"]) for r in study.records]
    assert made == [("one", 0), ("two", 0), ("one", 1), ("two", 1)]
    assert {label: len(of) for label, of in study.groups().items()} == {"one": 2, "two": 2}
    assert list(study.groups("two")) == ["two"] and study.one("two")["config"]["seed"] == 0
    assert store.training_hash()[:8] in study.made and study.origin == study.made
    kept = tmp_path / "kit" / "recorded" / "studies" / "toy.json"
    assert json.loads(kept.read_text()) == json.loads(study.path.read_text())
    study.path.unlink()
    assert recorded.load("toy").path == kept, "without one of the reader's own, that of the kit is shown"


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
        recorded.load("toy")  # half a study is none
    study = studies.record("toy")
    assert runs[2:] == [("one", 1), ("one", 1), ("two", 1)] and len(study.records) == 4
    studies.record("toy")
    assert len(runs) == 5, "nothing is left to run"


def test_runs_of_other_code_are_made_again(monkeypatch):
    monkeypatch.setitem(studies.STUDIES, "toy", lambda: toy_study()[:1])
    studies.record("toy")
    monkeypatch.setattr(store, "training_hash", lambda: "0" * 64)
    found = recorded.load("toy")
    assert found.origin != found.made, "it says that the code has changed"
    store.code_state.cache_clear()
    assert {r["environment"]["code"]["training_sha256"] for r in studies.record("toy").records} == {"0" * 64}
    store.code_state.cache_clear()


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs_fsdp if name == "sharding" else ()) for name in recorded.REPEATED]
)
def test_todays_code_learns_as_a_kept_study_did(name):
    """So a study need not be recorded again for a change of the code that changes nothing it learns."""
    path = paths.project_root() / "recorded" / "studies" / f"{name}.json"
    kept = recorded.read(name, path).one(recorded.REPEATED[name])
    seed = kept["config"]["seed"]
    [config] = [c for c in studies.STUDIES[name]() if (c.label, c.seed) == (kept["label"], seed)]
    again = run.run(config, group="again")["measured"]["samples"]["loss"][:10]  # later, rounding has grown
    assert again == pytest.approx(kept["measured"]["samples"]["loss"][:10], rel=1e-3)

"""Comparisons of real runs: rounds, failures, predictions, and what their records say together."""

import statistics

import pytest
import torch
from torch import nn
from toys import float64_net, toy_data

import helpers
from helpers import RankError, RunConfig
from helpers.records import read


@pytest.fixture(autouse=True)
def own_results(tmp_path, monkeypatch):
    monkeypatch.setenv("HELPERS_RESULTS", str(tmp_path / "results"))


def test_bring_your_own_model_and_data():
    made = helpers.compare(
        model=float64_net,
        dataset=toy_data,
        steps=8,
        global_batch=32,
        devices=2,
        prediction={"DDP ×2": 1.7, "DataParallel ×2": None},
    )
    assert [r["label"] for r in made.records] == ["baseline", "DataParallel ×2", "DDP ×2"]
    rows = made.rows()
    assert rows[0]["speed_up"] == 1 and rows[2]["predicted"] == 1.7 and rows[1]["predicted"] is None
    assert len({r["group"] for r in read.read().records}) == 1
    assert made.records[0]["config"]["model"] == "float64_net"


def test_rounds_go_there_and_back_and_count_together():
    base = RunConfig(model=float64_net, data=toy_data, steps=9, global_batch=32)
    made = helpers.compare([base, base.but(label="other"), base.but(label="third")], rounds=2)
    assert [r["label"] for r in made.runs] == ["baseline", "other", "third", "third", "other", "baseline"]
    assert [r["label"] for r in made.records] == ["baseline", "other", "third"]
    whole, halves = made.records[1]["measured"], [r["measured"] for r in made.runs if r["label"] == "other"]
    times = [half["samples"]["step_time_s"] for half in halves]
    assert whole["samples"]["step_time_s"] == times[0] + times[1] and whole["step_time_s"]["n"] == 12
    rates = [32 / seconds for seconds in times[0] + times[1]]
    assert whole["images_per_s"]["median"] == pytest.approx(statistics.median(rates))
    assert whole["samples"]["loss"] == halves[0]["samples"]["loss"] == halves[1]["samples"]["loss"]
    assert made.records[1]["total_s"] == pytest.approx((made.runs[1]["total_s"] + made.runs[4]["total_s"]) / 2)
    with pytest.raises(ValueError, match="rounds is 0"):
        helpers.compare([base], rounds=0)


def test_a_later_rung_that_fails_is_shown_and_the_rest_go_on(tmp_path, recwarn):
    (tmp_path / "results" / "runs").mkdir(parents=True)
    (tmp_path / "results" / "runs" / "20260101-000000-1.json").write_text("not a record")

    def fussy():
        class Fussy(nn.Linear):
            def forward(self, x):
                assert len(x) == 32, "planted: I want 32"
                return super().forward(x.flatten(1))

        return Fussy(192, 3).double()

    base = RunConfig(model=fussy, data=toy_data, steps=6, global_batch=32, evaluate=False)
    bad = base.but(strategy="ddp", nproc_per_node=2)
    made = helpers.compare([base, bad, base.but(label="again")], rounds=2)
    assert [r["label"] for r in made.runs].count(bad.label) == 1, "it is not tried again"
    assert [r["status"] for r in made.records] == ["completed", "failed", "completed"]
    assert made.rows()[1]["speed_up"] is None and "planted" in made.rows()[1]["note"] and made.rows() is made.rows()
    assert not [warning for warning in recwarn if "not a readable record" in str(warning.message)], "others are read"
    with pytest.raises(RankError, match="planted"):
        helpers.compare([bad, base])


def test_time_to_accuracy_is_that_of_the_first_evaluation_that_reaches_it():
    points = [{"train_s": s, "accuracy": a} for s, a in ((1.0, 0.3), (2.0, 0.8), (3.0, 0.7), (4.0, 0.9))]
    record = {"label": "x", "measured": {"curve": points}}
    assert [read.time_to_accuracy(record, t) for t in (0.1, 0.8, 0.85, 0.95)] == [1, 2, 4, None]
    with pytest.raises(ValueError, match="evaluate_every=1"):
        read.time_to_accuracy({"label": "x", "measured": {"curve": []}}, 0.5)


@pytest.mark.parametrize(
    "prediction, reason",
    [({"DDP ×3": 2}, "but the runs are"), ({"DDP ×2": 0}, "give a factor"), ({"DDP ×2": "fast"}, "give a factor")],
)
def test_bad_predictions_are_refused_before_anything_runs(prediction, reason):
    with pytest.raises(ValueError, match=reason):
        helpers.compare(model=float64_net, dataset=toy_data, steps=8, devices=2, prediction=prediction)
    assert read.read().records == []


@pytest.mark.parametrize(
    "sample, reason",
    [((torch.zeros(3), 1, "a.png"), "pair"), ((torch.zeros(3), torch.tensor([1])), "class number")],
)
def test_samples_that_no_batch_can_be_made_of_are_refused_before_anything_runs(sample, reason):
    with pytest.raises((TypeError, ValueError), match=reason):
        helpers.compare(model=float64_net, dataset=([sample] * 8, [sample] * 8), steps=2, global_batch=4, devices=2)
    assert read.read().records == []

"""Records are sorted by machine and into ladders; what may not be compared is never mixed."""

import pytest
from records import baseline, failed, on, planted

from helpers.records import read
from helpers.report import ladders


def machines(*records):
    return ladders.machines([read.checked(record) for record in records])


def labels(ladder):
    return [record["label"] for record in ladder.records]


OTHERS = (
    {"name": "Other CPU"},
    {"cores": 8},
    {"capability": "another"},
    {"instructions": ["another"]},
    {"limits": {"ONEDNN_MAX_CPU_ISA": "AVX2"}},
    {"kind": "cuda", "driver": "550"},
    {"capability": None, "instructions": None, "limits": None, "driver": None},  # of an old record
)


@pytest.mark.parametrize("machine", OTHERS, ids=str)
def test_machines_that_compute_differently_are_never_one(machine):
    found = machines(baseline(), planted(speed=1.8), *on(machine, baseline(), planted(speed=0.6)))
    assert len(found) == len({here.name for here in found}) == 2
    assert [here.ladders[0].rows()[1]["speed_up"] for here in found] == pytest.approx([1.8, 0.6])
    for here in found:
        (ladder,) = here.ladders  # although all belong to a group of the same name
        assert len({str(record["environment"]["machine"]) for record in ladder.runs}) == 1


def test_different_models_are_not_one_ladder():
    records = [baseline(), planted(), {**planted(model="resnet18"), "run_id": "other"}]
    (here,) = machines(*records)
    assert [labels(ladder) for ladder in here.ladders] == [["baseline", "DDP ×2"], ["DDP ×2"]]
    assert here.ladders[1].comparison is None
    (here,) = machines(failed(strategy="baseline", devices=1), planted())
    assert here.ladders[0].comparison is None


def test_single_runs_are_compared_with_a_plain_one():
    records = [planted(speed=1.5), planted("baseline", 1, 1.4, precision="bf16"), baseline()]
    (here,) = machines(*({**record, "group": ""} for record in records))
    (ladder,) = here.ladders
    assert ladder.comparison.baseline["label"] == "baseline" and len(ladder.records) == 3


def test_one_label_for_two_trainings_is_told_apart():
    other = {**planted(speed=1.2, global_batch=128), "run_id": "other"}
    (here,) = machines(baseline(), planted(), other)
    assert labels(here.ladders[0])[1:] == [
        "DDP ×2 · global_batch 64 · local_batch 32",
        "DDP ×2 · global_batch 128 · local_batch 64",
    ]


def test_rounds_are_put_together_and_seeds_give_their_mean():
    again = {**planted(speed=1.8), "run_id": "again"}
    seeded = [{**planted(devices=4, accuracy=a, seed=s), "run_id": f"s{s}"} for s, a in enumerate((0.8, 0.9, 0.7))]
    (here,) = machines(baseline(), planted(speed=1.8), again, *seeded)
    _, two, four = here.ladders[0].records
    assert two["rounds"] == ["id-DDP ×2", "again"] and two["measured"]["step_time_s"]["n"] == 40
    assert four["measured"]["evaluation"]["accuracy"] == pytest.approx(0.8)

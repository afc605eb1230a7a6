"""The interval of a speed-up holds the noise of both runs; planted times show when it does and does not hold 1."""

import random
from statistics import median

import pytest
from records import baseline, planted

from helpers.comparison.comparison import Comparison
from helpers.records import read, speedup

STEADY = [0.100, 0.101, 0.099, 0.100, 0.102, 0.098, 0.100, 0.101]
NOISY = [0.090, 0.150, 0.080, 0.120, 0.160, 0.085, 0.140, 0.118]


def test_the_noise_of_the_baseline_is_in_the_interval():
    fast = [0.85 * seconds for seconds in STEADY]
    sure, unsure = speedup.of_times([fast], [STEADY]), speedup.of_times([fast], [NOISY])
    assert sure.ratio == pytest.approx(1 / 0.85) and sure.shown
    assert unsure.ratio > sure.ratio and unsure.low < 1 < unsure.high and not unsure.shown
    assert (unsure.low, unsure.high) == pytest.approx((min(NOISY) / max(fast), max(NOISY) / min(fast)))


@pytest.mark.parametrize("rounds", [2, 3, 7])
def test_what_slows_a_round_of_both_runs_alike_is_no_noise(rounds):
    drift = [3.0**k for k in range(rounds)]
    base = [[d * seconds for seconds in STEADY] for d in drift]
    fast = [[0.9 * d * seconds for seconds in reversed(STEADY)] for d in drift]
    paired = speedup.of_times(fast, base)
    assert paired.ratio == pytest.approx(1 / 0.9) and paired.low > 1.05 and paired.high < 1.2
    assert not speedup.of_times([sum(fast, [])], [sum(base, [])]).shown, "pooled, the drift would hide it"


def test_with_many_rounds_each_counts_once():
    ratios = [1.5, 0.9, 1.4, 0.8, 1.6]  # some rounds faster, some slower, each with many steady steps
    base = [STEADY * 20 for _ in ratios]
    found = speedup.of_times([[s / ratio for s in STEADY * 20] for ratio in ratios], base)
    assert found == pytest.approx((1.4, 0.8, 1.6)) and not found.shown


def test_too_few_steps_have_no_interval_and_unlike_rounds_are_not_paired():
    found = speedup.of_times([STEADY, STEADY], [STEADY])
    assert found.ratio == pytest.approx(1) and found.low < 1 < found.high
    assert speedup.of_times([[0.1, 0.1]], [STEADY]) == (pytest.approx(1), None, None)
    assert not speedup.of_times([[0.01]], [STEADY]).shown


@pytest.mark.parametrize("n", [6, 11, 40])
def test_the_interval_holds_the_true_ratio_at_least_as_often_as_promised(n):
    chance = random.Random(3)
    times = lambda scale: [scale * (1 + chance.expovariate(4)) for _ in range(n)]  # noqa: E731
    found = [speedup.of_times([times(1.0)], [times(1.5)]) for _ in range(400)]
    assert sum(each.low <= 1.5 <= each.high for each in found) >= 0.95 * 400


def test_of_records_counts_samples_and_is_one_for_the_run_itself():
    base, wide = baseline(global_batch=64), planted(speed=1.0, global_batch=128)
    assert speedup.of_records(wide, base).ratio == pytest.approx(2)
    assert speedup.of_records(base, base) == (1, 1, 1)
    wide["measured"]["images_per_s"] = None
    assert speedup.of_records(wide, base) is None and speedup.of_records({"run_id": "failed"}, base) is None


def test_a_comparison_pairs_its_rounds():
    def round_of(number, drift):
        made = [baseline(), planted(speed=1.2)]
        for record in made:
            samples = record["measured"]["samples"]
            samples["step_time_s"] = [drift * seconds for seconds in samples["step_time_s"]]
            record["run_id"] += f" round {number}"
        return made

    first, second = round_of(1, 1.0), round_of(2, 2.0)
    found = Comparison([*first, *reversed(second)])
    rounds = [record["measured"]["samples"]["step_time_s"] for record in (first[1], second[1])]
    assert found.records[1]["measured"]["rounds_s"] == rounds
    row = found.rows()[1]
    assert row["speed_up"] == pytest.approx(1.2) and 1.1 < row["speed_up_low"] < 1.2 < row["speed_up_high"] < 1.3
    assert found.speed_up(found.records[1]) == (row["speed_up"], row["speed_up_low"], row["speed_up_high"])
    assert median(read.merged(first)[0]["measured"]["samples"]["step_time_s"]) == pytest.approx(0.1, rel=0.02)

"""Figures of learning: what they say is what the records hold, for any number of labels, seeds and evaluations."""

import pytest
from figures import labels
from gallery import RISE, SHARED, trained
from records import baseline, failed

from helpers import measure, plots
from helpers.plots import seeds
from notebooks.scripts.accuracy_curves import accuracy_curves
from notebooks.scripts.precision_by_batch import speed_by_batch, speed_over_batch


def study():
    """Four labels: one that is compared with, one faster, one that reaches 95% in 2 of 3 seeds, one in none."""
    return {
        "baseline": [trained(RISE, epoch_s=t) for t in (2.0, 2.5, 3.0)],  # 8, 10 and 12 s
        "two devices": [trained(RISE, devices=2, speed=1.9, epoch_s=t) for t in (1.2, 1.25, 1.3)],
        "four, scaled": [
            trained((0.4, 0.7, 0.9, end), devices=4, speed=2.5, epoch_s=1.0, note=SHARED) for end in (0.97, 0.90, 0.95)
        ],
        "four, naive": [
            trained((0.3, 0.5, 0.6, end), devices=4, speed=2.5, epoch_s=1.0, note=SHARED) for end in (0.7, 0.8, 0.9)
        ],
    }


def test_curves_are_the_mean_of_the_seeds_and_their_extremes():
    groups = {"a": [trained((0.5, 0.9)), trained((0.6, 0.96)), trained((0.7, 0.99))]}
    figure, alt = accuracy_curves(groups)
    [axes] = figure.axes
    [line] = axes.lines
    assert list(line.get_xdata()) == [1, 2] and list(line.get_ydata()) == pytest.approx([60, 95])
    [band] = axes.collections
    assert sorted(set(band.get_paths()[0].vertices[:, 1])) == pytest.approx([50, 70, 90, 99])
    assert "95.0%" in alt and "90.0%" in alt and "99.0%" in alt
    assert "95.0%  a" in [text for text, _ in labels(figure)]


def test_seeds_count_where_all_of_them_were_evaluated():
    longer, shorter = trained(RISE), trained(RISE[:2])
    figure, _ = accuracy_curves({"a": [longer, shorter]})
    assert list(figure.axes[0].lines[0].get_xdata()) == [1, 2]
    shorter["measured"]["curve"] = [{**shorter["measured"]["curve"][0], "step": 7}]
    with pytest.raises(ValueError, match="same settings"):
        accuracy_curves({"a": [longer, shorter]})


def test_time_to_accuracy_draws_what_was_measured():
    figure, alt = plots.time_to_accuracy(study(), 0.95)
    seconds, in_time, in_images, accuracy = figure.axes
    dots = sorted((line.get_ydata()[0], line.get_xdata()[0]) for line in seconds.lines if line.get_marker() == "o")
    assert dots == [(0, 8), (0, 10), (0, 12), (1, 4.8), (1, 5), (1, 5.2), (2, 4), (2, 4)]
    assert [bar.get_width() for bar in seconds.patches] == [10, 5, 4]
    assert [bar.get_width() for bar in in_time.patches] == pytest.approx([1, 2, 2.5])
    assert [bar.get_width() for bar in in_images.patches] == pytest.approx([1, 1.9, 2.5, 2.5])
    assert [bar.get_width() for bar in accuracy.patches] == pytest.approx([0.96, 0.96, 0.94, 0.8])
    written = " ".join(text for text, _ in labels(figure)).replace("\n", " ")
    assert all(part in written for part in ("2.00×", "scaled* (2 of 3 seeds)", "naive* (0 of 3 seeds)", SHARED))
    assert "four, scaled* (2 of 3 seeds)" in alt and "4.00" in alt


def test_seeds_that_never_reach_it_are_slower_than_all_others():
    """A median of the lucky seeds alone would praise a run that mostly fails."""
    groups = {"baseline": [trained(RISE)], "lucky": [trained(RISE, epoch_s=0.1), trained((0.5,)), trained((0.6,))]}
    figure, _ = plots.time_to_accuracy(groups, 0.95)
    assert len(figure.axes[0].patches) == len(figure.axes[1].patches) == 1
    assert [(row["seconds"] is None, row["reached"]) for row in seeds.rows(groups, 0.95)] == [(False, 1), (True, 1)]


@pytest.mark.parametrize(
    "runs, target, said", [([failed(), baseline()], 0.9, "evaluate_every=1"), ([trained(RISE)], 95, "target")]
)
def test_errors_say_what_to_do(runs, target, said):
    with pytest.raises(ValueError, match=said):
        plots.time_to_accuracy({"a": runs}, target)


def test_the_numbers_of_the_figure_leave_out_runs_that_failed():
    groups = study()
    groups["four, scaled"].append(failed())
    row = seeds.rows(groups, 0.95)[2]
    assert [row[key] for key in ("seeds", "left_out", "steps", "reached", "seconds")] == [3, 1, 40, 2, 4]
    assert [row[key] for key in ("accuracy", "accuracy_min", "accuracy_max")] == pytest.approx([0.94, 0.90, 0.97])
    assert row["speed_up_to_target"] == row["speed_up"] == 2.5
    assert "four, scaled (1)" in plots.time_to_accuracy(groups, 0.95)[0].get_supxlabel().replace("\n", " ")


def test_the_final_accuracy_is_that_of_the_end():
    record = trained(RISE)
    for end, accuracy in (({"accuracy": 0.93}, 0.93), (None, 0.96)):  # 0.93: after steps that the curve does not show
        record["measured"]["evaluation"] = end
        assert seeds.rows({"a": [record]}, 0.9)[0]["accuracy"] == accuracy


POINTS = [
    {"batch": 64, "ratio": 1.4, "low": 1.35, "high": 1.5},
    {"batch": 1, "ratio": 0.6, "low": 0.5, "high": 0.65},
    {"batch": 8, "ratio": 1.02, "low": 0.99, "high": 1.05},
]


def test_speed_over_batch_draws_what_was_measured():
    figure, alt = speed_over_batch({"bf16": POINTS, "fp16": [POINTS[1]]}, "Some speeds")
    [axes] = figure.axes
    assert axes.xaxis.get_transform().base == 2 and list(axes.get_xticks()) == [1, 8, 64]
    bf16, _fp16, one = axes.lines
    assert list(bf16.get_xdata()) == [1, 8, 64] and list(bf16.get_ydata()) == [0.6, 1.02, 1.4]
    assert set(axes.collections[0].get_paths()[0].vertices[:, 1]) == {0.5, 0.65, 0.99, 1.05, 1.35, 1.5}
    assert list(one.get_ydata()) == [1, 1] and "1.40× at 64" in alt
    assert {"1.40×  bf16", "0.60×  fp16"} <= {text for text, _ in labels(figure)}
    with pytest.raises(ValueError, match="nothing to draw"):
        speed_over_batch({"a": []}, "t")


def timed(batch, precision, last, rate, model="resnet18"):
    config = dict(model=model, local_batch=batch, global_batch=batch, precision=precision, channels_last=last)
    rates = [share * rate for share in (0.8, 0.9, 1, 1.1, 1.2)]
    samples = {"step_time_s": [batch / rate for rate in rates]}
    return {
        "run_id": f"{config}",
        "config": config,
        "measured": {"images_per_s": measure.summary(rates), "samples": samples},
    }


def test_speed_by_batch_is_relative_to_fp32_at_the_same_batch():
    records = [
        timed(64, "fp32", False, 100),
        timed(1, "fp32", False, 10),
        timed(64, "O1-bf16", True, 180),
        timed(1, "O1-bf16", True, 8),
        timed(256, "O1-bf16", True, 500),
        timed(64, "fp32", True, 120),
        timed(64, "O1-bf16", True, 9, "resnet50"),
    ]
    series = speed_by_batch(records, "resnet18")
    assert list(series) == ["O1-bf16 · channels last", "fp32 · channels last"]
    points = series["O1-bf16 · channels last"]
    assert [p["batch"] for p in points] == [1, 64], "without fp32 at that batch there is no ratio"
    assert [points[1][key] for key in ("ratio", "low", "high")] == pytest.approx([1.8, 1.2, 2.7])

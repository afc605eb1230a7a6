"""Figures of learning: what they say is what the records hold, for any number of labels, seeds and evaluations."""

import pytest
from figures import assert_readable, labels
from gallery import RISE, SHARED, groups, series, trained
from records import baseline, failed

from helpers import plots


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


def test_long_words_keep_the_end_in_which_they_differ():
    names = {"W" * 60 + str(k): [trained(RISE, note="W " * 200)] for k in range(4)}
    for figure, _ in (plots.accuracy_curves(names), plots.speed_over_batch(series(names), "t")):
        ends = [text[-1] for text, _ in labels(figure) if "…" in text]
        assert sorted(ends) == ["0", "1", "2", "3"]


# -- curves -------------------------------------------------------------------------------


def lines(axes):
    """The lines of data in their order; leaders and names left out."""
    return [line for line in axes.lines if line.get_transform() == axes.transData]


def test_curves_are_the_mean_of_the_seeds_and_their_extremes():
    groups = {"a": [trained((0.5, 0.9)), trained((0.6, 0.96)), trained((0.7, 0.99))]}
    figure, alt = plots.accuracy_curves(groups)
    [axes] = figure.axes
    [line] = lines(axes)
    assert list(line.get_xdata()) == [1, 2] and list(line.get_ydata()) == pytest.approx([60, 95])
    [band] = axes.collections
    assert sorted(set(band.get_paths()[0].vertices[:, 1])) == pytest.approx([50, 70, 90, 99])
    assert "a: 95.0% after 2 epochs (band 90.0% to 99.0%)." in alt
    assert "mean of 3 seeds" in alt and "from the lowest to the highest seed" in alt
    assert "95.0%  a" in [text for text, _ in labels(figure)]


def test_the_band_of_many_seeds_is_their_middle_half():
    groups = {"a": [trained((end - 0.1, end)) for end in (0.80, 0.90, 0.91, 0.92, 1.0)]}
    figure, alt = plots.accuracy_curves(groups)
    vertices = figure.axes[0].collections[0].get_paths()[0].vertices
    assert sorted(set(vertices[:, 1].round(6))) == pytest.approx([80, 82, 90, 92])
    assert "Light band: their middle half." in alt and "(band 90.0% to 92.0%)" in alt
    assert "fewer than 5 seeds" in plots.accuracy_curves(groups | {"b": [trained(RISE)]})[1]


def test_curves_run_over_epochs_or_updates():
    groups = {"a": [trained(RISE, epoch_s=2.0), trained(RISE, epoch_s=3.0)]}
    for over, x, said in (("epoch", [1, 2, 3, 4], "4 epochs"), ("step", [10, 20, 30, 40], "40 updates")):
        figure, alt = plots.accuracy_curves(groups, over)
        assert list(lines(figure.axes[0])[0].get_xdata()) == x
        assert f"a: 96.0% after {said}." in alt
    with pytest.raises(ValueError, match="'epoch', 'step'"):
        plots.accuracy_curves(groups, over="time")


def test_seeds_count_where_all_of_them_were_evaluated():
    longer, shorter = trained(RISE), trained(RISE[:2])
    figure, _ = plots.accuracy_curves({"a": [longer, shorter]})
    assert list(lines(figure.axes[0])[0].get_xdata()) == [1, 2]
    shorter["measured"]["curve"] = [{**shorter["measured"]["curve"][0], "step": 7}]
    with pytest.raises(ValueError, match="same settings"):
        plots.accuracy_curves({"a": [longer, shorter]})


def test_lines_differ_by_more_than_colour():
    figure, _ = plots.accuracy_curves(groups(12))
    looks = {(line.get_marker(), str(line._dash_pattern), line.get_linewidth()) for line in lines(figure.axes[0])}
    assert len(looks) == 11  # one label has no run that worked


def test_a_name_is_led_to_by_its_own_line():
    ends = {"low": 0.3, "lower": 0.2, "high": 0.8}
    figure, _ = plots.accuracy_curves({name: [trained((0.1, end))] for name, end in ends.items()})
    [axes] = figure.axes
    drawn = {line.get_ydata()[-1]: line.get_color() for line in lines(axes)}
    dashes = {line.get_ydata()[0]: line.get_color() for line in axes.lines if line.get_transform() == axes.transAxes}
    led = {text.get_text(): dashes[text.xyann[1]] for text in axes.texts}
    for name, end in ends.items():
        [colour] = [colour for y, colour in drawn.items() if y == pytest.approx(100 * end)]
        assert led[f"{100 * end:.1f}%  {name}"] == colour


def test_no_leader_crosses_a_line_that_goes_further():
    shorter, longer = (trained((0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.96, 0.97, 0.98)[:n]) for n in (10, 11))
    [axes] = plots.accuracy_curves({"shorter": [shorter], "longer": [longer]})[0].axes
    assert [text.xy for text in axes.texts if text.arrow_patch] == [(11, pytest.approx(98))]


# -- time to accuracy ---------------------------------------------------------------------


def test_time_to_accuracy_draws_what_was_measured():
    figure, alt = plots.time_to_accuracy(study(), 0.95)
    seconds, speed, accuracy = figure.axes
    dots = sorted((line.get_ydata()[0], line.get_xdata()[0]) for line in seconds.lines if line.get_marker() == "o")
    assert dots == [(0, 8), (0, 10), (0, 12), (1, 4.8), (1, 5), (1, 5.2), (2, 4), (2, 4)]
    bars = [line.get_xdata()[0] for line in seconds.lines if line.get_marker() != "o"]
    assert bars == [10, 5, 4]
    widths = [(bar.get_y() + bar.get_height() / 2, bar.get_width()) for bar in speed.patches]
    in_time = {round(y + 0.19): width for y, width in widths if y < round(y)}
    in_images = {round(y - 0.19): width for y, width in widths if y > round(y)}
    assert in_time == pytest.approx({0: 1, 1: 2, 2: 2.5})
    assert in_images == pytest.approx({0: 1, 1: 1.9, 2: 2.5, 3: 2.5})
    means = [line.get_xdata()[0] for line in accuracy.lines if line.get_marker() == "s"]
    assert means == pytest.approx([96, 96, 94, 80])
    written = [text for text, _ in labels(figure)]
    assert set(written) >= {
        "10.0 s",
        "2.00×",
        "1.90×",
        "1 of 3 seeds\nnever reached it",
        "none of 3 seeds\nreached it",
        "94.0%",
        "90.0–97.0",
        "Time to 95.0% test accuracy: resnet8 on digits",
        "3 seeds a row · Some CPU (cpu), 2 CPU cores",
        "four, scaled*",
        "four, naive*",
    }
    assert any(f"* {SHARED}." in text and "over baseline (1×)" in text for text in written)
    assert alt.endswith(
        "baseline: 10.0 s, final accuracy 96.0%. "
        "two devices: 5.00 s, 2.00× in time, 1.90× in images a second, final accuracy 96.0%. "
        "four, scaled: 4.00 s, 1 of 3 seeds never reached it, 2.50× in time, 2.50× in images a second, "
        "final accuracy 94.0%. four, naive: none of 3 seeds reached it, 2.50× in images a second, "
        f"final accuracy 80.0%. * {SHARED}."
    )


def test_seeds_that_never_reach_it_are_slower_than_all_others():
    """A median of the lucky seeds alone would praise a run that mostly fails."""
    groups = {"baseline": [trained(RISE)], "lucky": [trained(RISE, epoch_s=0.1), trained((0.5,)), trained((0.6,))]}
    figure, alt = plots.time_to_accuracy(groups, 0.95)
    assert "lucky: 2 of 3 seeds never reached it, 1.00× in images a second" in alt
    frame = plots.summary(groups, 0.95)
    assert frame["seconds to target"].isna().tolist() == [False, True]
    assert frame["seeds at target"].tolist() == [1, 1]


def test_a_baseline_that_never_reaches_it_leaves_no_speed_up_in_time():
    groups = {"baseline": [trained((0.5, 0.6))], "better": [trained(RISE, speed=2)]}
    figure, alt = plots.time_to_accuracy(groups, 0.95)
    said = "There is no speed-up in time to compare with baseline: half or more of its seeds never reached 95.0%."
    assert said in alt and any(said in text for text, _ in labels(figure))
    assert "better: 8.00 s, 2.00× in images a second" in alt and "in time," not in alt
    assert len(figure.axes[1].patches) == 2
    last, alt = plots.time_to_accuracy(study(), 0.99)
    assert "No seed reached 99.0%; the highest accuracy of all evaluations is 97.0%." in alt
    assert_readable(figure), assert_readable(last)


def test_what_is_left_out_is_said():
    groups = study()
    groups["two devices"][0] = failed()
    groups["four, naive"][:2] = [failed(), baseline()]
    groups["nothing"] = [failed()]
    said = (
        "Left out: two devices (1 run failed), four, naive (1 run failed, 1 run without a curve), "
        "nothing (1 run failed)."
    )
    for figure, alt in (plots.time_to_accuracy(groups, 0.95), plots.accuracy_curves(groups)):
        assert said in alt and any(said in text.replace("\n", " ") for text, _ in labels(figure))
    assert "two devices: 5.10 s, " in plots.time_to_accuracy(groups, 0.95)[1]
    assert "two devices" in alt and "nothing:" not in alt  # no line of its own


@pytest.mark.parametrize(
    "runs, arguments, said",
    [
        ({"a": [failed(), baseline()]}, {"target": 0.9}, "none of the 2 record.*evaluate_every=1"),
        ({}, {"target": 0.9}, "none of the 0 record"),
        ({"a": [trained(RISE)]}, {"target": 95}, "share of one"),
        ({"a": [trained(RISE)]}, {"target": "95%"}, "share of one"),
    ],
)
def test_errors_say_what_to_do(runs, arguments, said):
    for function in (plots.time_to_accuracy, plots.summary):
        with pytest.raises(ValueError, match=said):
            function(runs, **arguments)


# -- the table ----------------------------------------------------------------------------


def test_summary_holds_the_numbers_of_the_figure():
    groups = study()
    groups["four, scaled"].append(failed())
    frame = plots.summary(groups, 0.95)
    assert list(frame["label"]) == list(groups)
    row = dict(frame.iloc[2])
    assert (row["seeds"], row["left out"], row["steps"], row["seeds at target"]) == (3, "1 run failed", 40, 2)
    found = [row[f"accuracy {key}"] for key in ("mean", "min", "max")]
    assert found == pytest.approx([0.94, 0.90, 0.97])
    assert (row["seconds to target"], row["speed-up to target"]) == (4, 2.5)
    rates = [record["measured"]["images_per_s"]["median"] for record in groups["four, scaled"][:3]]
    assert row["images/s"] == rates[1] and row["speed-up in images/s"] == pytest.approx(2.5)
    assert list(frame["seconds to target"])[:3] == [10, 5, 4]
    alone = plots.summary({"a": trained(RISE), "b": [failed()]}, 0.95)  # a record that is no list of records
    assert alone["seeds"].tolist() == [1, 0] and alone["accuracy mean"].isna().tolist() == [False, True]


def test_the_final_accuracy_is_that_of_the_end():
    record = trained(RISE)
    record["measured"]["evaluation"]["accuracy"] = 0.93  # after steps that the curve does not show
    assert plots.summary({"a": [record]}, 0.9)["accuracy mean"].tolist() == [0.93]
    record["measured"]["evaluation"] = None
    assert plots.summary({"a": [record]}, 0.9)["accuracy mean"].tolist() == [0.96]


# -- speed over batch ---------------------------------------------------------------------

POINTS = [
    {"batch": 64, "ratio": 1.4, "low": 1.35, "high": 1.5},
    {"batch": 1, "ratio": 0.6, "low": 0.5, "high": 0.65},
    {"batch": 8, "ratio": 1.02, "low": 0.99, "high": 1.05},
]


def test_speed_over_batch_draws_what_was_measured():
    figure, alt = plots.speed_over_batch({"bf16": POINTS, "fp16": [POINTS[1]]}, "Some speeds")
    [axes] = figure.axes
    assert axes.xaxis.get_transform().base == 2 and list(axes.get_xticks()) == [1, 8, 64]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "8", "64"]
    bf16 = axes.containers[0]
    assert list(bf16.lines[0].get_xdata()) == [1, 8, 64] and list(bf16.lines[0].get_ydata()) == [0.6, 1.02, 1.4]
    whiskers = [segment[:, 1].tolist() for segment in bf16.lines[2][0].get_segments()]
    assert whiskers == [pytest.approx(pair) for pair in ([0.5, 0.65], [0.99, 1.05], [1.35, 1.5])]
    one = axes.lines[0]
    assert list(one.get_ydata()) == [1, 1] and one.get_linewidth() > 2
    written = [text for text, _ in labels(figure)]
    assert {"Some speeds", "local batch", "1.40×  bf16", "0.60×  fp16"} <= set(written)
    assert "bf16: 0.60× at 1, 1.40× at 64; clearly faster than fp32 from 64 on." in alt
    assert "fp16: 0.60× at 1; not clearly faster than fp32 at the largest batch." in alt


def test_faster_from_the_first_batch_on_and_not_before_the_last_dip():
    points = [{"batch": b, "ratio": r, "low": r - 0.1, "high": r + 0.1} for b, r in ((1, 1.3), (2, 1.05), (4, 1.5))]
    assert "faster than fp32 from 4 on" in plots.speed_over_batch({"a": points}, "t")[1]
    assert "faster than fp32 from 1 on" in plots.speed_over_batch({"a": points[::2]}, "t")[1]


def test_ticks_of_near_batches_do_not_touch():
    points = [{"batch": b, "ratio": 1.0, "low": 1.0, "high": 1.0} for b in (1, 60, 62, 64, 512, 1000)]
    figure, _ = plots.speed_over_batch({"a": points}, "t")
    assert_readable(figure)
    assert {"60", "62"} & {text for text, _ in labels(figure)} == {"60"}
    with pytest.raises(ValueError, match="batch, ratio, low and high"):
        plots.speed_over_batch({"a": []}, "t")

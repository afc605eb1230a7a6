"""Figures of the compiler: what they say is what they were given, for any plans, models and steps.

All rows are made up.
"""

import io
from xml.etree import ElementTree

import pytest
from figures import assert_readable, labels
from PIL import Image

from helpers.compiler import figures as plots
from helpers.compiler import operators
from helpers.compiler.operators import Profile
from helpers.compiler.time_figures import crossing
from helpers.plots import style

LONG = "an_unbroken_name_that_goes_on_and_on_and_on_and_on_and_on_and_on $x^2$ <b> & W"
NAMES = ("short", LONG, "W" * 60, "inductor · channels last · bf16")


def shares(*percent):
    """A made-up profile of a step of 100 ms with these percents of operators.KINDS, the rest bookkeeping."""
    seconds = dict(zip(operators.KINDS, (each / 1000 for each in percent), strict=False))
    return Profile({**seconds, "bookkeeping": 0.1 - sum(seconds.values())}, 0.1, 50)


def sample(plan, status, speed_up=None, *, compile_s=None, break_even=None, why=""):
    """A made-up row of a tuner's table."""
    return {
        "plan": plan, "status": status, "why": why, "compile_s": compile_s, "break_even": break_even,
        "output_error": None, "gradient_error": None, "step_s": speed_up and 0.1 / speed_up, "speed_up": speed_up,
        "speed_up_q1": speed_up and 0.95 * speed_up, "speed_up_q3": speed_up and 1.1 * speed_up,
    }  # fmt: skip


def tried():
    return [
        sample("eager", "baseline", 1.0), sample("eager · channels last", "slower", 1.25, compile_s=0.0),
        sample("inductor", "slower", 1.5, compile_s=14.2, break_even=455.2),
        sample("inductor · channels last", "chosen", 1.75, compile_s=16.8, break_even=1394.0),
        sample("max-autotune", "slower", 0.93, compile_s=71.0),
        sample("wrong", "rejected", compile_s=1.0, why="outputs 812 times as far off as eager's."),
        sample("absent", "skipped", why="the package absent is not installed"),
        sample("broken", "failed", why="RuntimeError: at step 3"),
    ]  # fmt: skip


def times(*plans):
    """Series for break_even from (name, seconds to compile, seconds a step)."""
    return [dict(zip(("name", "compile_s", "step_s"), plan, strict=True)) for plan in plans]


EAGER, QUICK, SLOW = ("eager", 0, 0.12), ("quick", 12.0, 0.06), ("slow", 30.0, 0.13)


def drawn(count):
    """All figures with `count` models, plans or runs, and with all that makes them difficult."""
    names = [f"{NAMES[k % 4]} {k}" for k in range(count)]
    percents = [(100, 0), (0, 0, 0, 40, 60), (30, 20, 1, 20, 17, 0.2, 0.3), (1, 1, 1, 1, 1, 1, 1), (2, 0, 97)]
    yield plots.profile({name: shares(*percents[k % 5]) for k, name in enumerate(names)})
    statuses = ("baseline", "chosen", "slower", "rejected", "failed", "skipped")
    rows = []
    for k, (name, status) in enumerate(zip(names, statuses * count, strict=False)):
        speed_up = None if k % 6 > 2 else 0.02 + k * k / 4
        cost = {"compile_s": 10.0 ** (k % 5), "break_even": k and 10.0 ** (k % 8)}
        rows.append(sample(name, status, speed_up, **cost, why=name * k))
    yield plots.plans(rows, LONG * 2)
    yield plots.plans(rows[3:4] * count or rows, "No bars" if count > 3 else "x")
    series = times(EAGER, *((name, 7.0 * k, 0.13 - 0.01 * k) for k, name in enumerate(names)))
    yield plots.break_even(series)
    yield plots.break_even(times(EAGER, *((name, 0.5 * 4**k, 0.06) for k, name in enumerate(names))))
    steps = {name: [10.0 ** (k % 5 - 3)] * (10**k if k < 4 else 7) for k, name in enumerate(names)}
    yield plots.step_times(steps, {name: range(0, len(steps[name]), 3) for name in names[1:]})
    yield plots.prediction(
        [{"name": name, "predicted": 1 + 0.2 * (k % 4), "measured": 0.3 + 0.25 * k} for k, name in enumerate(names)]
    )


@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_no_label_covers_another(count):
    for figure, alt in drawn(count):
        assert_readable(figure)
        assert alt.endswith(".")


def test_files_are_small_valid_and_the_same_again():
    again = drawn(6)
    for figure, alt in drawn(6):
        png, svg = style.png(figure), style.svg(figure, alt)
        other, other_alt = next(again)
        assert (style.png(other), style.svg(other, other_alt)) == (png, svg)
        picture = Image.open(io.BytesIO(png))
        assert len(png) < 80_000 and picture.convert("RGBA").getpixel((0, 0)) == (255,) * 4
        assert ElementTree.fromstring(svg).get("aria-label") == alt


# -- profile ------------------------------------------------------------------------------


def test_profile_draws_the_shares_and_the_bound():
    figure, alt = plots.profile({"net": shares(35, 20, 0, 25, 15, 1, 0), "mlp": shares(0, 0, 90)})
    [axes] = figure.axes
    bars = [bar for bar in axes.patches if bar.get_facecolor()[3] and bar.get_width() and bar.get_fill()]
    net = [(bar.get_x(), bar.get_width()) for bar in bars if bar.get_y() < 0.2]
    assert sum(width for _, width in net) == pytest.approx(100)
    assert [width for _, width in net] == pytest.approx([35, 20, 25, 15, 1, 4])
    outlined = [patch for patch in axes.patches if not patch.get_fill()]
    assert [(patch.get_x(), patch.get_width()) for patch in outlined] == [pytest.approx((55, 40))]
    written = [text for text, _ in labels(figure)]
    for said in ("net", "mlp", "35%", "15%", "1.67×", "1.00×", "can be fused: 40%", "depthwise convolution", "at most"):
        assert said in written
    assert "other" not in written  # no model has any
    assert (
        "net: convolution 35.0%, depthwise convolution 20.0%, normalisation 25.0%, pointwise 15.0%, "
        "pooling/softmax/loss 1.0%, bookkeeping 4.0%; normalisation and pointwise work are 40.0% of the step, so the "
        "bound on what fusing them gains is 1.67×." in alt
    )


def test_every_kind_has_a_look_of_its_own():
    assert list(plots.FILLS) == list(operators.KINDS)
    assert len(set(plots.FILLS.values())) == len(operators.KINDS)


def test_a_step_of_pointwise_work_alone_has_no_bound():
    figure, alt = plots.profile({"all of it": shares(0, 0, 0, 0, 100)})
    assert "no bound" in [text for text, _ in labels(figure)] and "is not finite." in alt
    assert_readable(figure)


def test_no_profile_is_an_error():
    with pytest.raises(ValueError, match="no profile to draw"):
        plots.profile({})


# -- plans --------------------------------------------------------------------------------


def test_plans_are_drawn_from_the_fastest_with_their_spread():
    figure, alt = plots.plans(tried(), "Some plans")
    [axes] = figure.axes
    bars = axes.patches
    assert [bar.get_width() for bar in bars] == [1.75, 1.5, 1.25, 1.0, 0.93]
    whiskers = [each.lines[2][0].get_segments()[0][:, 0].tolist() for each in axes.containers if hasattr(each, "lines")]
    assert whiskers[0] == pytest.approx([0.95 * 1.75, 1.1 * 1.75])
    assert [line.get_xdata()[0] for line in axes.lines if line.get_linewidth() == 1.8] == [1]
    written = [text for text, _ in labels(figure)]
    for said in (
        "Some plans", "eager 1×", "1.75×", "chosen", "✓ inductor · channels last", "14.2 s", "456", "1,394", "never",
        "Not timed", "wrong – rejected: outputs 812 times as far off as eager's",
        "absent – skipped: the package absent is not installed", "broken – failed: RuntimeError: at step 3",
    ):  # fmt: skip
        assert said in written
    assert written.count("chosen") == 1 and bars[0].get_facecolor() not in [bar.get_facecolor() for bar in bars[1:]]
    assert alt == (
        "Some plans: speed-up of a training step over eager. "
        "inductor · channels last: 1.75× (middle half 1.66× to 1.93×), 16.8 s to compile, which pays at step 1,394, "
        "chosen. inductor: 1.50× (middle half 1.42× to 1.65×), 14.2 s to compile, which pays at step 456. "
        "eager · channels last: 1.25× (middle half 1.19× to 1.38×). eager: 1.00×, what the others are compared with. "
        "max-autotune: 0.93× (middle half 0.88× to 1.02×), 71.0 s to compile, which never pays. "
        "wrong – rejected: outputs 812 times as far off as eager's. "
        "absent – skipped: the package absent is not installed. broken – failed: RuntimeError: at step 3."
    )


def test_a_plan_that_was_timed_and_then_dropped_has_no_bar():
    rows = [*tried()[:1], sample("broken", "failed", 2.0, why="at step 3")]
    figure, alt = plots.plans(rows, "t")
    assert len(figure.axes[0].patches) == 1 and "broken – failed: at step 3." in alt


def test_one_plan_and_none_that_worked():
    figure, alt = plots.plans(tried()[:1], "t")
    assert_readable(figure)
    assert "Not timed" not in [text for text, _ in labels(figure)]
    figure, alt = plots.plans(tried()[5:], "t")
    assert figure.axes == [] and alt.endswith("No plan has been timed.")
    assert_readable(figure)
    assert "none – skipped: no reason was given." in plots.plans([sample("none", "skipped")], "t")[1]
    with pytest.raises(ValueError, match="no plan to draw"):
        plots.plans([], "t")


# -- break-even ---------------------------------------------------------------------------


def test_break_even_is_where_the_lines_cross():
    figure, alt = plots.break_even(times(EAGER, QUICK, SLOW))
    [axes] = figure.axes
    [circle] = [line for line in axes.lines if line.get_fillstyle() == "none"]
    assert (list(circle.get_xdata()), list(circle.get_ydata())) == ([200], [pytest.approx(24)])
    curves = [line for line in axes.lines if line.get_transform() == axes.transData and line is not circle]
    assert [line.get_ydata()[0] for line in curves] == [0, 12, 30]
    assert axes.get_xscale() == "linear" and axes.get_xlim() == (0, 300)
    written = [text.strip() for text, _ in labels(figure)]
    assert {"200 steps", "eager", "quick\n  pays after 200 steps", "slow\n  never pays"} <= set(written)
    assert alt == (
        "Training time over steps, compiling included. eager: 0.120 s a step. "
        "quick: 12.0 s to compile, 0.0600 s a step (2.00×), pays after 200 steps. "
        "slow: 30.0 s to compile, 0.130 s a step (0.92×), never pays."
    )


def test_crossings_far_apart_are_drawn_on_logarithmic_axes():
    figure, alt = plots.break_even(times(EAGER, QUICK, ("cached", 0.5, 0.06)))
    [axes] = figure.axes
    assert axes.get_xscale() == axes.get_yscale() == "log" and "cached: 0.500 s to compile" in alt
    assert {"200 steps", "9 steps"} <= {text for text, _ in labels(figure)}
    assert_readable(figure)


def test_crossings():
    eager, quick, slow = times(EAGER, QUICK, SLOW)
    assert crossing(eager, quick) == 200 and crossing(eager, slow) is None and crossing(eager, eager) is None
    assert crossing(eager, {**quick, "compile_s": 0.07}) == 2  # a part of a step is a step
    assert crossing(eager, {**quick, "compile_s": 0}) == 0
    assert crossing({**eager, "compile_s": 6.0}, quick) == 100


def test_a_plan_that_pays_at_once_and_one_that_never_does():
    for plan, said in ((("layout", 0.0, 0.06), "pays at once"), (SLOW, "never pays")):
        figure, alt = plots.break_even(times(EAGER, plan))
        assert alt.endswith(f"{said}.") and any(text.endswith(said) for text, _ in labels(figure))
        assert not any(text.startswith("Circle") for text, _ in labels(figure))
        assert_readable(figure)


def test_plans_without_times_are_left_out_and_said():
    figure, alt = plots.break_even(times(EAGER, QUICK, ("broken", None, None)))
    assert alt.endswith("Left out, since they have no times: broken.")
    assert "Left out, since they have no times: broken." in " ".join(text for text, _ in labels(figure))
    for series in ([], times(EAGER), times(("eager", None, None), QUICK, SLOW)):
        with pytest.raises(ValueError, match="eager first and at least one plan"):
            plots.break_even(series)


# -- steps --------------------------------------------------------------------------------


def test_step_times_mark_the_steps_that_compiled():
    samples = {"alike": [9.0, 0.1, 0.1, 0.1], "changing": [8.0, 0.1, 0.2, 5.0, 0.3], "eager": [0.2] * 5}
    figure, alt = plots.step_times(samples, {"alike": [0], "changing": [3, 0]})
    marked = [line for axes in figure.axes for line in axes.lines if line.get_marker() == "D"]
    assert [list(line.get_xdata()) for line in marked] == [[1], [1, 4], []]
    assert list(marked[1].get_ydata()) == [8000, 5000]
    whole = [line for line in figure.axes[1].lines if line.get_marker() == "o"][0]
    assert list(whole.get_xdata()) == [1, 2, 3, 4, 5] and list(whole.get_ydata()) == [8000, 100, 200, 5000, 300]
    assert {axes.get_yscale() for axes in figure.axes} == {"log"}
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    assert "alike: other steps: median 100 ms, compiled once, in step 1, that step took 9.00 s." in alt
    assert "changing: other steps: median 200 ms, compiled 2 times, in steps 1, 4, these steps took 13.0 s." in alt
    assert alt.endswith("eager: median 200 ms, nothing was compiled.")


@pytest.mark.parametrize("seconds", [[0.1], [0.05, 0.06], [0.001, 100.0]])
def test_any_span_of_times_has_numbers_on_its_axis(seconds):
    figure, _ = plots.step_times({"a": seconds}, {"a": [0]})
    low, high = figure.axes[0].get_ylim()
    assert [tick for tick in figure.axes[0].get_yticks() if low <= tick <= high]
    assert_readable(figure)


@pytest.mark.parametrize(
    "samples, events, said",
    [
        ({}, {}, "at least one step"), ({"a": []}, {}, "at least one step"),
        ({"a": [1.0]}, {"a": [1]}, r"'a' that no step has: \[1\]"), ({"a": [1.0]}, {"b": [0]}, "'b' that no step has"),
        ({"a": [1.0]}, {"a": [-1]}, "counted from 0"),
    ],
)  # fmt: skip
def test_events_of_no_step_are_an_error(samples, events, said):
    with pytest.raises(ValueError, match=said):
        plots.step_times(samples, events)


# -- prediction ---------------------------------------------------------------------------


def points(*triples):
    return [dict(zip(("name", "predicted", "measured"), each, strict=True)) for each in triples]


def test_prediction_is_drawn_against_measurement():
    figure, alt = plots.prediction(points(("net", 1.66, 1.72), ("resnet", 1.1, 0.9), ("as said", 1.5, 1.5)))
    [axes] = figure.axes
    marks = [line for line in axes.lines if line.get_markersize() == 9]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in marks] == [(1.66, 1.72), (1.1, 0.9), (1.5, 1.5)]
    assert len({line.get_marker() for line in marks}) == 3
    diagonal = axes.lines[0]
    assert list(diagonal.get_xdata()) == list(diagonal.get_ydata()) == list(axes.get_xlim()) == list(axes.get_ylim())
    assert axes.get_xlim()[0] < 0.9
    assert axes.bbox.width == pytest.approx(axes.bbox.height, rel=0.01)
    assert "  net\n  predicted 1.66×, measured 1.72×" in [text for text, _ in labels(figure)]
    assert alt == (
        "Measured speed-up over the predicted bound, a mark a model. "
        "net: predicted at most 1.66×, measured 1.72×, more than predicted. "
        "resnet: predicted at most 1.10×, measured 0.90×, less than predicted. "
        "as said: predicted at most 1.50×, measured 1.50×, about as predicted."
    )


def test_the_axes_of_a_prediction_start_at_one():
    figure, _ = plots.prediction(points(("a", 1.2, 1.4)))
    assert figure.axes[0].get_xlim()[0] == figure.axes[0].get_ylim()[0] == 1


def test_predictions_without_a_bound_are_left_out_and_said():
    figure, alt = plots.prediction(points(("a", 1.2, 1.4), ("all pointwise", float("inf"), 3.0)))
    assert alt.endswith("Left out, since there is no bound: all pointwise.")
    with pytest.raises(ValueError, match="none of the 1 point"):
        plots.prediction(points(("a", float("inf"), 2.0)))

"""Figures of the compiler: what they say is what they were given, for any plans, models and steps.

All rows are made up.
"""

import pytest
from figures import assert_readable, labels
from gallery import cost_series, plan, shares

from helpers.records.speedup import SPEED_UP
from notebooks.scripts import compiler_figures as plots


def tried():
    return [
        plan("eager", "baseline", 1.0),
        plan("eager · channels last", "slower", 1.25, compile_s=0.0),
        plan("inductor", "slower", 1.5, compile_s=14.2, break_even=455.2),
        plan("inductor · channels last", "chosen", 1.75, compile_s=16.8, break_even=1394.0),
        plan("max-autotune", "slower", 0.93, compile_s=71.0),
        plan("wrong", "rejected", compile_s=1.0, why="outputs 812 times as far off as eager's."),
        plan("absent", "failed", why="the package absent is not installed"),
        plan("broken", "failed", why="RuntimeError: at step 3"),
    ]


EAGER, QUICK, SLOW = ("eager", 0, 0.12), ("quick", 12.0, 0.06), ("slow", 30.0, 0.13)


def test_profile_draws_the_shares_and_the_bound():
    figure, alt = plots.profile({"net": shares(55, 0, 25, 15, 1, 0), "mlp": shares(0, 90)})
    [axes] = figure.axes
    bars = [bar for bar in axes.patches if bar.get_fill() and bar.get_y() < 0.2]
    assert [bar.get_width() for bar in bars] == pytest.approx([55, 25, 15, 1, 4])
    outlined = [patch for patch in axes.patches if not patch.get_fill()]
    assert [(patch.get_x(), patch.get_width()) for patch in outlined] == [pytest.approx((55, 40))]
    written = {text for text, _ in labels(figure)}
    assert {"net", "55%", "15%", "at most 1.67×", "can be fused: 40%", "normalisation"} <= written
    assert "other" not in written  # no model has any
    assert "no bound" in plots.profile({"all of it": shares(0, 0, 0, 100)})[1]
    assert "net: most is convolution (55.0%); 40.0% can be fused, at most 1.67×." in alt


def test_plans_are_drawn_from_the_fastest_with_their_spread():
    figure, alt = plots.plans(tried(), "Some plans")
    [axes] = figure.axes
    bars = axes.patches
    assert [bar.get_width() for bar in bars] == [1.75, 1.5, 1.25, 1.0, 0.93]
    whiskers = [each.lines[2][0].get_segments()[0][:, 0].tolist() for each in axes.containers if hasattr(each, "lines")]
    assert whiskers[0] == pytest.approx([0.95 * 1.75, 1.1 * 1.75])
    assert [line.get_xdata()[0] for line in axes.lines if line.get_linewidth() == 1.5] == [1]
    written = [text for text, _ in labels(figure)]
    chosen = "1.75×, 16.8 s to compile, pays at step 1,394, chosen"
    assert {"Some plans", "✓ inductor · channels last", chosen} <= set(written)
    assert bars[0].get_facecolor() not in [bar.get_facecolor() for bar in bars[1:]]
    for words in (
        f"channels last: {chosen}.",
        "14.2 s to compile, pays at step 456.",
        "71.0 s to compile, never pays.",
    ):
        assert words in alt
    for row in tried()[5:]:
        assert row["why"].rstrip(".") in alt and row["why"].split()[0] in " ".join(written)


def test_break_even_is_where_the_lines_cross():
    figure, alt = plots.break_even(cost_series(EAGER, QUICK, SLOW))
    [axes] = figure.axes
    [circle] = [line for line in axes.lines if line.get_fillstyle() == "none"]
    assert (list(circle.get_xdata()), list(circle.get_ydata())) == ([200], [0])
    curves = [line for line in axes.lines if line.get_transform() == axes.transData and line is not circle]
    assert [line.get_ydata()[0] for line in curves] == [0, -12, -30]
    assert axes.get_xlim() == (0, 300)
    written = [text for text, _ in labels(figure)]
    assert {"eager", "quick\npays after 200 steps", "slow\nnever pays"} <= set(written)
    assert alt.endswith("quick: 12.0 s to compile, pays after 200 steps. slow: 30.0 s to compile, never pays.")


def test_step_times_mark_the_steps_that_compiled():
    samples = {"alike": [9.0, 0.1, 0.1, 0.1], "changing": [8.0, 0.1, 0.2, 5.0, 0.3], "eager": [0.2] * 5}
    figure, alt = plots.step_times(samples, {"alike": [0], "changing": [3, 0]})
    marked = [line for axes in figure.axes for line in axes.lines if line.get_marker() == "D"]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in marked] == [(1, 9000), (1, 8000), (4, 5000)]
    whole = [line for line in figure.axes[1].lines if line.get_marker() == "o"][0]
    assert list(whole.get_xdata()) == [1, 2, 3, 4, 5] and list(whole.get_ydata()) == [8000, 100, 200, 5000, 300]
    assert {axes.get_yscale() for axes in figure.axes} == {"log"}
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    assert "alike: other steps: median 100 ms, compiled in step 1, took 9.00 s." in alt
    assert "changing: other steps: median 200 ms, compiled in step 1, 4, took 13.0 s." in alt
    assert alt.endswith("eager: median 200 ms, nothing was compiled.")


def test_recorded_cases_say_where_no_difference_is_shown():
    row = lambda *found: [{**plan("inductor", "slower"), **dict(zip(SPEED_UP, found, strict=True))}]  # noqa: E731
    tables = {"net": row(1.5, 1.4, 1.6), "resnet": row(0.7, 0.6, 0.8), "noisy": row(1.3, 0.5, 1.8)}
    failed = [plan("inductor", "failed", why="no compiler")]
    figure, alt = plots.recorded({**tables, "not timed": failed})
    assert_readable(figure)
    assert alt.endswith("net: 1.50×. resnet: 0.70×. noisy: 1.30×, not shown.")
    with pytest.raises(ValueError):
        plots.recorded({"a": failed})

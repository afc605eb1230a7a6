"""Figures of the move to NPUs show what they were given, and say that the cards are emulated."""

import pytest
from figures import labels
from gallery import FIGURES

from platforms.npu import figures as plots


def test_figures_of_cards_say_that_they_are_emulated_and_need_something_to_draw():
    for name in ("npu cards", "npu scales"):
        figure, alt = FIGURES[name](1)
        title = max(labels(figure), key=lambda label: label[1].y0)[0]
        assert "(emulated NPU)" in alt and ("(emulated NPU)" in title or "…" in title)
    for draw, *given in (plots.accuracy, {}, 1), (plots.scales, {}), (plots.cards, {}):
        with pytest.raises(ValueError):
            draw(*given)


def test_cards_shows_who_worked_where():
    runs = {"with": [{0: 85}, {1: 80}], "without": [{0: 85}, {0: 80}]}
    figure, alt = plots.cards(runs, {"with": 1, "without": 1}, count=3)
    frames = [box for box in figure.axes[0].patches if box.get_linestyle() not in ("solid", "-")]
    assert [(round(box.get_x() + 0.49), round(box.get_y() + 0.28)) for box in frames] == [(1, 0), (1, 1)]
    written = [text for text, _ in labels(figure)]
    assert {"with", "npu:2", "85", "80", "85 + 80", "idle", "process 1"} <= set(written)
    assert all(part in alt for part in ("npu:0 (85)", "npu:1 (80)", "npu:0 (80)", "predicted on npu:1"))


def test_accuracy_draws_medians_over_the_seeds():
    figure, alt = plots.accuracy({"kept": [[10.0, 90.0], [30.0, 92.0], [20.0, 97.0]], "lost": [[10.0, 80.0]] * 3}, 1)
    lines = [line for line in figure.axes[0].lines if line.get_transform().contains_branch(figure.axes[0].transData)]
    assert [list(line.get_ydata()) for line in lines if line.get_marker() in "os"] == [[20.0, 92.0], [10.0, 80.0]]
    assert sum(line.get_linewidth() == 0.8 and line.get_marker() == "None" for line in lines) == 6, "a line a seed"
    assert "92.0 % (90.0 to 97.0)" in alt and "80.0 % (80.0 to 80.0)" in alt


def test_scales_crosses_out_what_is_left_out():
    figure, alt = plots.scales({"dynamic": [(65536, True), (32768, False)], "fixed": [(1024, False)] * 2})
    cross = [line for line in figure.axes[0].lines if line.get_marker() == "X"]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in cross] == [(0, 65536)]
    assert "65,536" in alt and "[0]" in alt

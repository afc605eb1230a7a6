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

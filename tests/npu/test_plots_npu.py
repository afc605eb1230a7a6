"""Figures of the move to NPUs: what they say is what they were given, and that the cards are emulated.

All numbers are made up.
"""

import pytest
from figures import labels
from gallery import FIGURES

from helpers.npu import figures as plots


@pytest.mark.parametrize("name", [name for name in FIGURES if name.startswith("npu")])
def test_every_figure_says_that_the_cards_are_emulated(name):
    figure, alt = FIGURES[name](1)
    title = max(labels(figure), key=lambda label: label[1].y0)[0]
    assert "(emulated NPU)" in alt and ("(emulated NPU)" in title or "…" in title)


def test_other_cards_are_named():
    assert "(Ascend NPU)" in plots.losses({"a": [1.0, 0.5]}, on="Ascend NPU")[1]


def test_cards_shows_who_worked_where():
    figure, alt = plots.cards({"with": [{0: 85}, {1: 80}], "without": [{0: 85}, {0: 80}]}, {"with": 1, "without": 1})
    [axes] = figure.axes
    bars = [bar for bar in axes.patches if bar.get_facecolor()[3]]
    assert [(bar.get_x(), bar.get_width()) for bar in bars if bar.get_width()] == [(0, 85), (0, 80), (0, 85), (85, 80)]
    frames = [bar for bar in axes.patches if not bar.get_facecolor()[3]]
    assert [round(bar.get_y() + bar.get_height() / 2) for bar in frames] == [1, 3]  # rows of npu:1
    written = [text for text, _ in labels(figure)]
    assert {"with: npu:0", "without: npu:1", "idle", "165", "process 1"} <= set(written)
    assert alt == (
        "Operators on each card (emulated NPU). with: process 0 on npu:0 (85), process 1 on npu:1 (80) (process 1 "
        "predicted on npu:1). without: process 0 on npu:0 (85), process 1 on npu:0 (80) (process 1 predicted on npu:1)."
    )


def test_counted_shows_what_is_missing():
    figure, alt = plots.counted({"guide": 16, "mended": 21}, 21, "Images that count", "images", {"guide": 20})
    [axes] = figure.axes
    assert [bar.get_width() for bar in axes.patches] == [16, 21]
    assert axes.patches[0].get_facecolor() != axes.patches[1].get_facecolor()
    assert {"16 of 21, predicted 20", "21 of 21"} <= {text for text, _ in labels(figure)}
    assert alt == "Images that count (emulated NPU), images: guide 16 of 21, predicted 20; mended 21 of 21."


def test_equal_losses_are_called_equal():
    figure, alt = plots.losses({"cpu": [2.5, 2.0], "npu": [2.5, 2.0]})
    assert [list(line.get_ydata()) for line in figure.axes[0].lines[:2]] == [[2.5, 2.0]] * 2
    assert "cpu: from 2.50 to 2.00 in 2 steps." in alt
    assert alt.endswith("The lines are equal where they have the same steps.")
    assert "at most 0.25" in plots.losses({"cpu": [2.5, 2.0], "npu": [2.5, 1.75, 1.0]})[1]


def test_kernels_names_the_steps_that_compile():
    figure, alt = plots.kernels({"dropped": [223, 252, 252], "kept": [223, 252, 345]}, ("kept", 2, 10))
    cross = [line for line in figure.axes[0].lines if line.get_marker() == "X"]
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in cross] == [([2], [262])]
    assert "predicted: 10 more" in [text for text, _ in labels(figure)]
    assert alt == (
        "Kernels compiled until the end of each step (emulated NPU). New ones: dropped: 223 in step 0, 29 in step 1. "
        "kept: 223 in step 0, 29 in step 1, 93 in step 2. Predicted: 10 new ones in step 2 (kept)."
    )


def test_learning_rates_says_when_they_change():
    figure, alt = plots.learning_rates({"kept": [0.1] * 2 + [0.01] * 2, "dropped": [0.1] * 4}, {3: 0.05})
    assert figure.axes[0].get_yscale() == "log"
    assert "kept: 0.1 at first, 0.01 from epoch 2. dropped: 0.1 at first, and never another." in alt
    assert alt.endswith("Predicted: 0.05 in epoch 3.")


def test_scales_crosses_out_what_is_left_out():
    figure, alt = plots.scales({"dynamic": [(65536, True), (32768, False)], "fixed": [(1024, False)] * 2})
    cross = [line for line in figure.axes[0].lines if line.get_marker() == "X"]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in cross] == [(0, 65536)]
    assert "dynamic: 65,536 at first, 32,768 at last, steps left out: [0]." in alt
    assert alt.endswith("fixed: 1,024 at first, 1,024 at last, steps left out: [].")


@pytest.mark.parametrize("draw", [
    lambda: plots.cards({"a": [{}, {}]}), lambda: plots.counted({}, 3, "t", "u"), lambda: plots.losses({"a": []}),
    lambda: plots.kernels({}), lambda: plots.learning_rates({}), lambda: plots.scales({}),
])  # fmt: skip
def test_nothing_to_draw_is_an_error(draw):
    with pytest.raises(ValueError):
        draw()

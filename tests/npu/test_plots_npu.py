"""Figures of the move to NPUs: what they say is what they were given, and that the cards are emulated.

All numbers are made up.
"""

import io

import pytest
from figures import assert_readable, labels
from PIL import Image

from helpers.npu import figures as plots
from helpers.plots import style

LONG = "an_unbroken_name_that_goes_on_and_on_and_on_and_on_and_on_and_on $x^2$ <b> & W"
NAMES = ("short", LONG, "W" * 60, "last batch kept")


def drawn(count):
    """All figures with `count` runs, and with all that makes them difficult."""
    names = [f"{NAMES[k % 4]} {k}" for k in range(count)]
    yield plots.cards({name: [{k: 100, 0: 3}, {0: 10 * k}] for k, name in enumerate(names)}, {names[0]: 0})
    yield plots.counted({name: 7 * k for k, name in enumerate(names)}, 21, LONG * 2, "images", {names[0]: 21})
    yield plots.losses({name: [7.1, 3.0 + k, 2.0] for k, name in enumerate(names)}, LONG * 2)
    yield plots.kernels({name: [150, 150 + k, 300 * (k + 1)] for k, name in enumerate(names)}, (names[0], 2, 10))
    rates = {name: [0.1] * 30 + [0.1 / (k + 1)] * 30 for k, name in enumerate(names)}
    yield plots.learning_rates(rates, {45: 0.05, 3: 0.2})
    yield plots.scales({name: [(2.0 ** (16 - k), k < 2), (2.0**15, False)] for k, name in enumerate(names)})


@pytest.mark.parametrize("count", [1, 2, 5])
def test_no_label_covers_another(count):
    for figure, alt in drawn(count):
        assert_readable(figure)
        assert alt.endswith(".")


def test_every_figure_says_that_the_cards_are_emulated():
    for figure, alt in drawn(2):
        title = max(labels(figure), key=lambda label: label[1].y0)[0]
        assert "(emulated NPU)" in alt and ("(emulated NPU)" in title or "…" in title)
    assert "(Ascend NPU)" in plots.losses({"a": [1.0, 0.5]}, on="Ascend NPU")[1]


def test_files_are_small_and_the_same_again():
    for (figure, _), (other, _) in zip(drawn(4), drawn(4), strict=True):
        png = style.png(figure)
        assert style.png(other) == png and len(png) < 80_000
        assert Image.open(io.BytesIO(png)).convert("RGBA").getpixel((0, 0)) == (255,) * 4


def test_cards_shows_who_worked_where():
    figure, alt = plots.cards({"with": [{0: 85}, {1: 80}], "without": [{0: 85}, {0: 80}]}, {"with": 1, "without": 1})
    [axes] = figure.axes
    bars = [bar for bar in axes.patches if bar.get_facecolor()[3]]
    assert [(bar.get_x(), bar.get_width()) for bar in bars if bar.get_width()] == [(0, 85), (0, 80), (0, 85), (85, 80)]
    frames = [bar for bar in axes.patches if not bar.get_facecolor()[3]]
    assert [round(bar.get_y() + bar.get_height() / 2 + 0.08) for bar in frames] == [1, 3]  # rows of npu:1
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
    assert alt == "Images that count (emulated NPU), of 21 images: guide 16; mended 21. Predicted: guide 20."


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

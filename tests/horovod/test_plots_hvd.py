"""Figures of a Horovod job: what they say is what they were given. All numbers are made up."""

import pytest
from figures import assert_readable, labels

from platforms.horovod import figures as plots


def test_stages_begin_at_the_first_stamp():
    figure, alt = plots.stages(
        {"rank 0": [("compute", 100, 130)], "rank 1": [("split", 90, 100), ("update", 131, 135)]}
    )
    [axes] = figure.axes
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(10, 30), (0, 10), (41, 4)]
    assert {"split", "compute", "update"} <= {text for text, _ in labels(figure)}
    assert "intervene" not in {text for text, _ in labels(figure)}
    assert "45.0 ms" in alt


def test_departures_have_a_row_for_each_message():
    tensors = {"first layer": (90, 95, 120), "last layer": (20, 30, 40), "its bias": (15, 30.001, 40)}
    figure, alt = plots.departures(tensors, (10, 110))
    [axes] = figure.axes
    seen = [(round(bar.get_x(), 3), round(bar.get_width(), 3)) for bar in axes.patches]
    assert seen == [(0, 100), (5, 15.001), (20.001, 9.999), (80, 5), (85, 25)]
    assert {"its bias and 1 more", "first layer"} <= {text for text, _ in labels(figure)}
    assert "100 ms" in alt


def test_drift_draws_every_value():
    figure, alt = plots.drift({"with": [0.5, 0, 0], "without": [0.5, 0.5, 0.75]})
    assert [list(line.get_ydata()) for line in figure.axes[0].lines[:2]] == [[0.5, 0, 0], [0.5, 0.5, 0.75]]
    assert "0.750" in alt


def test_accuracy_over_rates_draws_medians():
    figure, alt = plots.over_rate({"SGD": {"batch 32": {0.1: [0.5, 0.6, 0.6, 0.6, 0.9], 0.2: [0.7] * 5}}}, "Rates")
    assert list(figure.axes[0].lines[0].get_ydata()) == [0.6, 0.7]
    assert "70.0%" in alt and "0.2" in alt
    assert_readable(figure)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plots.stages({"rank 0": []}),
        lambda: plots.departures({}, (0, 1)),
        lambda: plots.drift({"a": []}),
        lambda: plots.over_rate({}, "t"),
    ],
)
def test_nothing_to_draw_is_an_error(draw):
    with pytest.raises(ValueError):
        draw()

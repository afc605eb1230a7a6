"""Figures of the cost model: what they say is what they were given. All numbers are made up."""

import pytest
from figures import labels

from helpers import costmodel
from helpers.costmodel import figures as plots
from helpers.costmodel import fit
from helpers.records.words import percent

SLOW = costmodel.Link(1e-3, 1e-8)
EVEN = tuple((1e6, (k + 1) / 100) for k in range(100))  # gradients that are ready one after the other
MODEL = costmodel.Compute((0.0, 1e-3), (0.0, 2e-3), gradients=EVEN)


def test_predicted_steps_have_their_error_and_their_spread():
    steps = [0.08, 0.09, 0.1, 0.1, 0.11, 0.12]
    figure, alt = plots.predicted({"a": {"predicted": 0.09, "measured": 0.1, "steps": steps}}, "T", {"a": 0.2, "b": 3})
    assert "-10.0%" in " ".join(text for text, _ in labels(figure)) and "-10.0%" in alt
    points = {line.get_marker(): line.get_xdata()[0] for line in figure.axes[0].lines}
    assert points["D"] == pytest.approx(90) and points["o"] == pytest.approx(200)
    [spread] = figure.axes[0].containers[-1][2][0].get_segments()
    assert [x for x, _ in spread] == pytest.approx([80, 120]) and figure.axes[0].get_xlim()[1] > 120


def test_a_sweep_has_its_largest_residual_and_the_spread_of_each_size():
    seconds = {2**10: sum(costmodel.all_reduce(2**10, 2, SLOW)), 2**20: 2 * sum(costmodel.all_reduce(2**20, 2, SLOW))}
    rounds = {size: [s / 2, s / 2, s, 2 * s, 3 * s] for size, s in seconds.items()}
    figure, alt = plots.sweep(fit.Fit(MODEL, SLOW, 2, rounds))
    assert "1,000 µs" in alt and "100 MB/s" in alt and "-50% at 1 MB" in alt
    [container] = figure.axes[0].containers
    drawn = [segment[:, 1].tolist() for segment in container[2][0].get_segments()]
    assert drawn == [pytest.approx([1e3 * of[0], 1e3 * of[-1]]) for of in rounds.values()]


def test_scaling_marks_regimes_and_says_where_they_change():
    bound = costmodel.curve(MODEL, costmodel.Link(1e-4, 1e-10), [2**k for k in range(11)], batch=32, algorithm="ring")
    figure, alt = plots.scaling({"ring": bound})
    colours = {line.get_color() for line in figure.axes[0].lines if line.get_linestyle() == "None"}
    assert colours == {plots.REGIMES[step.regime][0] for step in bound} and len(colours) > 1
    assert bound[-1].regime in alt and percent(bound[-1].efficiency) in alt

"""Figures of a Horovod job: what they say is what they were given. All numbers are made up."""

import pytest
from figures import assert_readable, labels

from helpers.hvd import figures as plots
from helpers.records.words import percent


def test_stages_begin_at_the_first_stamp():
    figure, alt = plots.stages(
        {"rank 0": [("compute", 100, 130)], "rank 1": [("split", 90, 100), ("update", 131, 135)]}
    )
    [axes] = figure.axes
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(10, 30), (0, 10), (41, 4)]
    assert {"split", "compute", "update"} <= {text for text, _ in labels(figure)}
    assert "bind" not in {text for text, _ in labels(figure)}
    assert "45.0 ms in all. rank 0: split 0.00 ms, compute 30.0 ms" in alt


def test_departures_are_in_the_order_of_being_ready():
    tensors = {"first layer": (90, 95, 120), "last layer": (20, 30, 40)}
    figure, alt = plots.departures(tensors, (10, 110))
    [axes] = figure.axes
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(0, 100), (10, 10), (20, 10), (80, 5), (85, 25)]
    assert alt.endswith(
        "Backward takes 100 ms. Of 2 gradients the first is ready at 10% of it, the last at 80%; "
        "1 have been reduced before backward is over."
    )


def test_many_departures_are_thinned_out_and_it_says_so():
    figure, alt = plots.departures({f"p{k}": (k, k, k + 1) for k in range(62)}, (0, 60))
    written = {text for text, _ in labels(figure)}
    assert {"p0", "p61", "30 of 62 gradients are shown."} <= written and "Of 62 gradients" in alt


def test_drift_draws_every_value():
    figure, alt = plots.drift({"with": [0.5, 0, 0], "without": [0.5, 0.5, 0.75]})
    assert [list(line.get_ydata()) for line in figure.axes[0].lines[:2]] == [[0.5, 0, 0], [0.5, 0.5, 0.75]]
    assert "with: 0.500 at first, 0.00 at last. without: 0.500 at first, 0.750 at last." in alt


def test_a_difference_of_zero_has_a_place_of_its_own():
    figure, alt = plots.apart({"same": 0.0, "near": 1e-16, "far": 1e-2}, "Gradients", "difference", (1e-12, "allowed"))
    same, near, far = [line for line in figure.axes[0].lines if line.get_marker() in ("o", "X")]
    assert same.get_xdata()[0] < near.get_xdata()[0] == 1e-16
    assert [line.get_marker() for line in (same, near, far)] == ["o", "o", "X"]
    assert alt == "Gradients: same 0; near 1.0e-16; far 1.0e-02. Dashed line: allowed, 1e-12."
    assert_readable(plots.apart({"all": 0.0, "of them": 0.0}, "Gradients", "difference")[0])


def test_bars_say_their_values_and_what_was_predicted():
    figure, alt = plots.bars(
        {"a": 0.5, "b": 0.25, "gone": float("nan")}, "Accuracy", "share", percent, {"b": 0.9}, ["b"]
    )
    a, b = figure.axes[0].patches
    assert (a.get_width(), b.get_width()) == (0.5, 0.25) and a.get_facecolor() != b.get_facecolor()
    assert [line.get_xdata()[0] for line in figure.axes[0].lines if line.get_marker() == "D"] == [0.9]
    assert alt == "Accuracy, share: a 50.0%; b 25.0%, predicted 90.0%; gone nan%."


@pytest.mark.parametrize("draw", [
    lambda: plots.stages({"rank 0": []}), lambda: plots.departures({}, (0, 1)), lambda: plots.drift({"a": []}),
    lambda: plots.apart({}, "t", "u"), lambda: plots.bars({}, "t", "u"),
])  # fmt: skip
def test_nothing_to_draw_is_an_error(draw):
    with pytest.raises(ValueError):
        draw()

"""How accuracy grows: the learning curves of several seeds a label."""

import math
from statistics import fmean

from .. import measure
from ..records import seeds
from . import style
from .drawing import AXES, NAMES, fitted, heights, line_style, name_ends, write_foot
from .style import number, percent

OVER = {  # key in a curve's entry, name of the axis, one and several of its unit
    "epoch": ("epoch", "epochs", "epoch", "epochs"),
    "step": ("step", "updates of the weights", "update", "updates"),
    "seconds": ("train_s", "seconds of training", "s", "s"),
}


def accuracy_curves(groups, over="epoch", target=None) -> tuple:
    """The test accuracy as training goes on: the mean over the seeds, a line a label, and their spread.

    Args:
        over: what runs along the x axis: "epoch", "step" (updates of the weights) or "seconds" (of
            training; the mean of the seeds).
        target: an accuracy, a share of one, to draw a dashed line at.

    Raises:
        ValueError: no record has a curve, or `over` or `target` is none of the above.
    """
    if over not in OVER:
        raise ValueError(f"over is {over!r}; allowed: {', '.join(map(repr, OVER))}")
    found = seeds.rows(groups, 1 if target is None else target)
    rows = [row for row in found if row["seeds"]]
    marks = seeds.marks(rows) if over == "seconds" else {}
    notes = [seeds.left_out(found), *(f"{mark} {note}" for note, mark in marks.items())]
    means = [_mean_curve(row["curves"], OVER[over][0]) for row in rows]
    told = [_curve_told(row["label"], curve, over, target) for row, curve in zip(rows, means, strict=True)]
    spread = _spread_told(rows)
    with style.look():
        figure = style.canvas(1)  # as high as the names need, once they are known
        names = [fitted(figure, seeds.marked(row, marks), NAMES, 2) for row in rows]
        pitch, high = heights(names)
        write_foot(figure, 0.3 + high + 0.5, [spread, *notes])
        axes = style.panel(figure, 0.75, 0.3, AXES, high)
        for place, curve in enumerate(means):
            _line(axes, place, curve)
        _scale(axes, means, over, target)
        name_ends(axes, [(c[-1][0], c[-1][1], f"{c[-1][1]:.1f}%", n) for c, n in zip(means, names, strict=True)], pitch)
    alt = f"Test accuracy over {OVER[over][1]}, a line a label. {spread}"
    return figure, " ".join([alt, *told, *filter(None, notes)])


def _mean_curve(curves, key):
    """(x, mean, low, high) in percent wherever all seeds were evaluated."""
    by_step = [{entry["step"]: entry for entry in curve} for curve in curves]
    points = []
    for step in sorted(set.intersection(*map(set, by_step))):
        entries = [curve[step] for curve in by_step]
        values = [100 * entry["accuracy"] for entry in entries]
        points.append((fmean(entry[key] for entry in entries), fmean(values), *_spread(values)))
    if not points:
        raise ValueError("the seeds of a label were evaluated after different steps; give them the same settings")
    return points


def _spread(values):
    """Middle half of many seeds, extremes of a few."""
    if len(values) < measure.AT_LEAST:
        return min(values), max(values)
    summary = measure.summary(values)
    return summary["q1"], summary["q3"]


def _spread_told(rows):
    few, many = (f(row["seeds"] for row in rows) for f in (min, max))
    if many == 1:
        return "One seed a line."
    told = f"{few} seeds" if few == many else f"{few} to {many} seeds"
    band = "their middle half" if few >= measure.AT_LEAST else "from the lowest to the highest seed"
    if few < measure.AT_LEAST <= many:
        band = f"their middle half, or from the lowest to the highest of fewer than {measure.AT_LEAST} seeds"
    return f"Line: mean of {told}. Light band: {band}."


def _line(axes, place, curve):
    x, mean, low, high = zip(*curve, strict=True)
    look = line_style(place)
    axes.fill_between(x, low, high, color=look["color"], alpha=0.18, linewidth=0)
    if len(curve) == 1:  # a band over one evaluation has no width
        axes.vlines(x, low, high, color=look["color"], linewidth=1.2)
    axes.plot(x, mean, **look, markevery=[-1], clip_on=False)


def _scale(axes, means, over, target):
    from matplotlib.ticker import MaxNLocator

    seen = [value for curve in means for point in curve for value in point[2:]]
    seen += [] if target is None else [100 * target]
    low, high = 10 * math.floor(min(seen) / 10), min(100.5, 10 * math.ceil(max(seen) / 10 + 0.1))
    last = max(curve[-1][0] for curve in means)
    axes.set(xlabel=OVER[over][1], ylabel="test accuracy", xlim=(0, 1.03 * last), ylim=(low, high))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=over != "seconds", steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}%")
    axes.grid(axis="y")
    if target is not None:
        axes.axhline(100 * target, color=style.INK, linestyle=(0, (6, 3)), linewidth=1.2)
        axes.annotate(
            f"target {percent(target)}", (0, 100 * target), xytext=(3, 2), textcoords="offset points", size=9,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )  # fmt: skip


def _curve_told(label, curve, over, target):
    def after(x):
        return f"{number(x) if over == 'seconds' else f'{x:g}'} {OVER[over][2 if x == 1 else 3]}"

    (first, start, *_), (last, end, low, high) = curve[0], curve[-1]
    told = f"{label}: " + (f"from {start:.1f}% after {after(first)} " if len(curve) > 1 else "")
    told += f"{'to ' if len(curve) > 1 else ''}{end:.1f}% after {after(last)}"
    told += f" (band {low:.1f}% to {high:.1f}%)" if low < high else ""
    if target is None:
        return told + "."
    reached = next((x for x, mean, *_ in curve if mean >= 100 * target), None)
    verb = "never reaches" if reached is None else "reaches"
    return f"{told}; its mean {verb} {percent(target)}{'' if reached is None else f' after {after(reached)}'}."

"""How the test accuracy of several seeds a label grows."""

from statistics import fmean

from helpers.language import N_, _
from helpers.plots import seeds
from helpers.plots.layout import lines
from helpers.plots.style import readable, sentence

AXES = {"epoch": N_("epochs"), "step": N_("updates of the weights")}  # by key in a curve's entry


@readable()
def accuracy_curves(groups, over="epoch") -> tuple:
    """The test accuracy as training goes on: the mean over the seeds, a line a label, and their range.

    Args:
        over: what runs along the x axis: "epoch" or "step" (updates of the weights).

    Raises:
        ValueError: no record has a curve, or `over` is none of the above.
    """
    if over not in AXES:
        raise ValueError(f"over is {over!r}; allowed: {', '.join(map(repr, AXES))}")
    axis = _(AXES[over])
    found = seeds.rows(groups, target=1)
    rows = [row for row in found if row["seeds"]]
    means = {row["label"]: _mean_curve(row["curves"], over) for row in rows}
    few, many = (f(row["seeds"] for row in rows) for f in (min, max))
    count = str(many) if few == many else _("{few} to {many}").format(few=few, many=many)
    band = _("Light band: {band}.").format(band=_("from the lowest to the highest seed"))
    about = f"{_('Line: mean of {count} seeds.').format(count=count)} {band}" if many > 1 else _("One seed a line.")
    notes = [about, *filter(None, [seeds.left_out(found)])]
    figure = lines(
        _("Test accuracy over {OVER}: {trained}").format(OVER=axis, trained=seeds.trained(rows)),
        {label: {x: mean for x, (mean, _low, _high) in curve.items()} for label, curve in means.items()},
        axis,
        _("accuracy, %"),
        "{:.1f}%".format,
        band={label: {x: ends for x, (_mean, *ends) in curve.items()} for label, curve in means.items()},
        notes=notes,
    )
    alt = [_("Test accuracy over {OVER}, a line a label.").format(OVER=axis), *notes]
    for label, curve in means.items():
        mean, low, high = list(curve.values())[-1]
        words = _(" (band {low}% to {high}%)").format(low=f"{low:.1f}", high=f"{high:.1f}") if low < high else ""
        alt.append(sentence(label, f"{mean:.1f}%{words}"))
    return figure, " ".join(alt)


def _mean_curve(curves, key):
    """{x: (mean, lowest, highest)} in percent wherever all seeds were evaluated."""
    by_step = [{entry["step"]: entry for entry in curve} for curve in curves]
    points = {}
    for step in sorted(set.intersection(*map(set, by_step))):
        entries = [curve[step] for curve in by_step]
        values = [100 * entry["accuracy"] for entry in entries]
        points[fmean(entry[key] for entry in entries)] = fmean(values), min(values), max(values)
    if not points:
        raise ValueError("the seeds of a label were evaluated after different steps; give them the same settings")
    return points

"""Accuracy of several seeds a label: how it grows, and how long it takes to reach a target.

A speed that counts is one that reaches the same accuracy sooner.
"""

from statistics import fmean

from ..language import N_, _
from ..records import seeds
from ..records.words import number, percent, samples_of, times
from .layout import lines
from .panels import panels
from .style import readable, sentence

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


@readable()
def time_to_accuracy(groups, target) -> tuple:
    """Seconds of training until `target`, the speed-up in that beside that of a step, and accuracy.

    Args:
        groups: {label: [records, one a seed]}; the others are compared with the first.
        target: a test accuracy, a share of one.

    Raises:
        ValueError: no record has a curve, or `target` is no share of one.
    """
    rows = seeds.rows(groups, target)
    marks, goal, samples = seeds.marks(rows), percent(target), samples_of(rows)
    some = _(" ({reached} of {seeds} seeds)")
    cells = [
        {
            "name": seeds.with_marks(row, marks) + some.format(**row) * (row["reached"] < row["seeds"]),
            "kind": "ours",
            "seconds": (row["seconds"], row["times"]),
            "speed_up_to_target": row["speed_up_to_target"],
            "speed_up": row["speed_up"],
            "accuracy": (row["accuracy"], [curve[-1]["accuracy"] for curve in row["curves"]]),
        }
        for row in rows
    ]
    columns = (
        ("seconds", _("seconds to {target}").format(target=goal), number, None),
        ("speed_up_to_target", _("speed-up in time"), times, 1),
        ("speed_up", _("speed-up in {samples}/s").format(samples=samples), times, 1),
        ("accuracy", _("final accuracy"), percent, target),
    )
    notes = [
        _("Circle: a seed; bar: the median of the seconds, the mean of the accuracies."),
        _("Speed-ups are over {label} (1×).").format(label=rows[0]["label"]),
    ]
    if any(row["reached"] < row["seeds"] for row in rows):
        notes.append(_("In brackets: the seeds that reached it."))
        notes.append(_("A seed that never reached it counts as slower than all others."))
    notes = [" ".join(notes), *(f"{mark} {_(note)}" for note, mark in marks.items()), seeds.left_out(rows)]
    title = _("Time to {target} test accuracy: {trained}").format(target=goal, trained=seeds.trained(rows))
    return panels(title, seeds.machine(rows), cells, columns, notes)

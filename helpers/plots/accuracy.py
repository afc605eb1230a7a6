"""Accuracy of several seeds a label: how it grows, and how long it takes to reach a target.

A speed that counts is one that reaches the same accuracy sooner.
"""

import math
from statistics import fmean

from .. import measure
from ..launcher.language import listed, local, marked
from ..records import seeds
from ..records.words import samples_of
from . import style
from .layout import DASHED, bar, line_names, line_style, name_ends, name_rows, sheet, ticks
from .style import beside, number, percent, times

OVER = {  # key in a curve's entry, name of the axis, one and several of its unit
    "epoch": ("epoch", marked("epochs"), marked("after {x} epoch"), marked("after {x} epochs")),
    "step": ("step", marked("updates of the weights"), marked("after {x} update"), marked("after {x} updates")),
}
ROW = 0.62  # inches
BARS = (  # key in a row, name in the key, colour, hatch, font: the upper and the lower bar
    ("speed_up_to_target", marked("speed-up in time"), style.BLUE, "", {"weight": "bold"}),
    ("speed_up", marked("speed-up in {samples}/s"), "none", "///", {"color": style.SOFT}),
)


# -- learning curves ----------------------------------------------------------------------


def accuracy_curves(groups, over="epoch") -> tuple:
    """The test accuracy as training goes on: the mean over the seeds, a line a label, and their spread.

    Args:
        over: what runs along the x axis: "epoch" or "step" (updates of the weights).

    Raises:
        ValueError: no record has a curve, or `over` is none of the above.
    """
    if over not in OVER:
        raise ValueError(f"over is {over!r}; allowed: {', '.join(map(repr, OVER))}")
    found = seeds.rows(groups, target=1)
    rows = [row for row in found if row["seeds"]]
    left_out = seeds.left_out(found)
    means = [_mean_curve(row["curves"], OVER[over][0]) for row in rows]
    names, high = line_names([row["label"] for row in rows])
    trained = seeds.trained(rows)
    title = marked(f"Test accuracy over {OVER[over][1]}: {trained}")
    with sheet(title, high, notes=[_spread_words(rows), left_out]) as (figure, [axes]):
        for place, curve in enumerate(means):
            x, mean, low, upper = zip(*curve, strict=True)
            look = line_style(place)
            axes.fill_between(x, low, upper, color=look["color"], alpha=0.18, linewidth=0)
            if len(curve) == 1:  # a band over one evaluation has no width
                axes.vlines(x, low, upper, color=look["color"], linewidth=1.2)
            axes.plot(x, mean, **look)
        _scale(axes, means, over)
        name_ends(axes, [(curve[-1][0], curve[-1][1], f"{curve[-1][1]:.1f}%") for curve in means], names, high)
    words = [_curve_words(row["label"], curve, over) for row, curve in zip(rows, means, strict=True)]
    alt = f"Test accuracy over {OVER[over][1]}, a line a label."
    return figure, " ".join([alt, _spread_words(rows), *words, *filter(None, [left_out])])


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


def _spread_words(rows):
    few, many = (f(row["seeds"] for row in rows) for f in (min, max))
    if many == 1:
        return marked("One seed a line.")
    band = marked("their middle half") if few >= measure.AT_LEAST else marked("from the lowest to the highest seed")
    if few < measure.AT_LEAST <= many:
        band = f"their middle half, or from the lowest to the highest of fewer than {measure.AT_LEAST} seeds"
    count = few if few == many else style.said("{few} to {many}", few=few, many=many)
    return " ".join([f"Line: mean of {count} seeds.", f"Light band: {band}."])


def _scale(axes, means, over):
    seen = [value for curve in means for point in curve for value in point[2:]]
    low, high = 10 * math.floor(min(seen) / 10), min(100.5, 10 * math.ceil(max(seen) / 10 + 0.1))
    last = max(curve[-1][0] for curve in means)
    axes.set(xlabel=OVER[over][1], ylabel=marked("test accuracy"), xlim=(0, 1.03 * last), ylim=(low, high))
    ticks(axes.xaxis, count=8, integer=True)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}%")
    axes.grid(axis="y")


def _curve_words(label, curve, over):
    x, end, low, high = curve[-1]
    after = local(OVER[over][2 if x == 1 else 3], x=f"{x:g}")
    words = local("{end}% {after}", end=f"{end:.1f}", after=after)
    words += local(f" (band {low:.1f}% to {high:.1f}%)") if low < high else ""
    return listed([words], "; ", label)


# -- time to accuracy ---------------------------------------------------------------------


def time_to_accuracy(groups, target) -> tuple:
    """Seconds of training until `target`, the speed-up in that beside that of a step, and accuracy.

    Every number stands in a column of its own beside the marks, so no label can cover another.

    Args:
        groups: {label: [records, one a seed]}; the others are compared with the first.
        target: a test accuracy, a share of one.

    Raises:
        ValueError: no record has a curve, or `target` is no share of one.
    """
    rows = seeds.rows(groups, target)
    marks = seeds.marks(rows)
    notes = _notes(rows, target, marks)
    few, many = (f(row["seeds"] for row in rows) for f in (min, max))
    how = f"{few} to {many} seeds a row" if few < many else f"{many} seed{'s' * (many > 1)} a row"
    trained, machine = seeds.trained(rows), seeds.machine(rows)
    key = [(words.format(samples=samples_of(rows)), *look) for _, words, *look, _ in BARS]
    with sheet(
        marked(f"Time to {percent(target)} test accuracy: {trained}"),
        ROW * len(rows),
        how=f"{style.said(how)} · {machine}",
        key=key,
        notes=notes,
        panels=3,
        ratios=(4, 5, 2),
    ) as (figure, panels):
        name_rows(panels[0], [seeds.with_marks(row, marks) for row in rows], 2.05, 3, 9.5, panels[1:])
        titles = (marked(f"seconds to {percent(target)}"), marked("speed-up"), marked("final accuracy"))
        for axes, title, draw in zip(panels, titles, (_seconds, _speed_ups, _accuracy), strict=True):
            axes.grid(axis="x")
            axes.set_title(title)
            draw(axes, rows, target)
    return figure, " ".join(
        [
            f"Time to {percent(target)} test accuracy, speed-ups and final accuracy: {trained}, {machine}.",
            *(_row_words(row, row is rows[0]) for row in rows),
            *notes[1:],
        ]
    )


def _notes(rows, target, marks):
    base, about = rows[0], [marked("Circle: a seed; bar: the seeds' median.")]
    if any(0 < row["reached"] < row["seeds"] for row in rows):
        about.append(marked("A seed that never reached it counts as slower than all others."))
    about.append(marked("Final accuracy: mean, lowest to highest seed."))
    about.append(f"Speed-ups are over {base['label']} (1×).")
    notes = [" ".join(about)]
    if not any(row["reached"] for row in rows):
        most = max(entry["accuracy"] for row in rows for curve in row["curves"] for entry in curve)
        notes.append(f"No seed reached {percent(target)}; the highest accuracy of all evaluations is {percent(most)}.")
    elif not base["seconds"]:
        why = f"half or more of its seeds never reached {percent(target)}"
        why = why if base["seeds"] else marked("it has no run")
        notes.append(f"There is no speed-up in time to compare with {base['label']}: {why}.")
    notes += [f"{mark} {style.said(note)}" for note, mark in marks.items()]
    return [*notes, *filter(None, [seeds.left_out(rows)])]


def _seconds(axes, rows, target):
    longest = max((time for row in rows for time in row["times"]), default=None)
    axes.set_xlim(0, 1.06 * (longest or 1))
    ticks(axes.xaxis, count=4)
    if longest is None:
        axes.set_xticks([])
    for y, row in enumerate(rows):
        if row["seconds"]:
            axes.plot([row["seconds"]] * 2, [y - 0.3, y + 0.3], color=style.BLUE, linewidth=4)
        for time in row["times"]:
            axes.plot(
                time,
                y,
                "o",
                markersize=6,
                markerfacecolor="none",
                markeredgecolor=style.INK,
                markeredgewidth=1.1,
                clip_on=False,
            )
        never = _never(row)
        if row["seconds"]:
            beside(axes, y - 0.24 * bool(never), f"{number(row['seconds'])} s", weight="bold", size=10.5)
        if never:
            folded = style.said(never).replace("seeds ", "seeds\n")
            beside(axes, y + 0.18 * bool(row["seconds"]), folded, color=style.RED, size=9, linespacing=1.05)


def _never(row):
    """How many seeds never reached the target; "" if all did."""
    of = row["seeds"]
    missing = of - row["reached"]
    if not of:
        return marked("no run to show")
    if not missing:
        return ""
    if of == 1:
        return marked("never reached it")
    return f"none of {of} seeds reached it" if missing == of else f"{missing} of {of} seeds never reached it"


def _speed_ups(axes, rows, target):
    axes.set_xlim(0, 1.06 * max(1, *(row[key] or 0 for row in rows for key, *_ in BARS)))
    ticks(axes.xaxis, "{:g}×", 4)
    for (key, _, colour, hatch, font), shift in zip(BARS, (-0.19, 0.19), strict=True):
        for y, row in enumerate(rows):
            if row[key]:
                bar(axes, y + shift, row[key], (colour, hatch), height=0.3)
            beside(axes, y + shift, times(row[key]), size=10, **font)
    axes.axvline(1, color=style.INK, linewidth=1.8)


def _accuracy(axes, rows, target):
    """Final accuracy on a scale that shows the differences; positions, not lengths, say how much."""
    lowest = min([target, *(row["accuracy_min"] for row in rows if row["seeds"])])
    low = max(0, 10 * math.floor(10 * lowest - 0.1))
    axes.axvline(100 * target, color=style.INK, linestyle=DASHED, linewidth=1)
    for y, row in enumerate(rows):
        if not row["seeds"]:
            continue
        mean, worst, best = (100 * row[key] for key in ("accuracy", "accuracy_min", "accuracy_max"))
        axes.plot([worst, best], [y, y], color=style.INK, linewidth=1.6, clip_on=False)
        axes.plot(mean, y, "s", color=style.GREEN, markersize=5, clip_on=False)
        several = row["seeds"] > 1
        beside(axes, y - 0.17 * several, f"{mean:.1f}%", size=10)
        if several:
            beside(axes, y + 0.19, f"{worst:.1f}–{best:.1f}", color=style.SOFT, size=9)
    axes.set_xlim(low, 100)
    axes.set_xticks([low, 100], [f"{low}", "100%"])


def _row_words(row, is_baseline):
    if not row["seeds"]:
        return listed([_never(row)], about=row["label"])
    words = [f"{number(row['seconds'])} s"] if row["seconds"] else []
    words += filter(None, [_never(row)])
    if not is_baseline:
        words += [f"{times(row['speed_up_to_target'])} in time"] if row["speed_up_to_target"] else []
        words += [f"{times(row['speed_up'])} in {row['samples_are']} a second"] if row["speed_up"] else []
    return listed([*words, f"final accuracy {percent(row['accuracy'])}"], about=row["label"])

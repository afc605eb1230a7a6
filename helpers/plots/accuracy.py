"""The central plot of a study of accuracy: a speed that counts is one that reaches the same accuracy sooner."""

import math

from ..records import seeds
from . import style
from .drawing import fitted, write_foot, write_title
from .style import beside, number, percent, times

ROW, HEAD, GAP, SIDE = 0.62, 1.34, 0.2, 0.85  # inches: a label, above the labels, between panels, a small panel
COLUMNS = (1.2, 0.62, 0.92)  # inches of the numbers beside each panel
BARS = (  # key in a row, what it says, colour, hatch, text: the upper and the lower bar
    ("speed_up_to_target", "to {target}", style.BLUE, "", {"weight": "bold"}),
    ("speed_up", "in images/s", "white", "///", {"color": style.SOFT}),
)  # fmt: skip


def time_to_accuracy(groups, target, baseline=None) -> tuple:
    """Seconds of training until `target`, the speed-up in that beside the speed-up in images/s, and accuracy.

    Every number stands in a column of its own beside the marks, so no label can cover another.

    Args:
        groups: {label: [records, one a seed]}.
        target: a test accuracy, a share of one.
        baseline: the label that the others are compared with (None: the first).

    Raises:
        ValueError: no record has a curve, `baseline` is no label, or `target` is no share of one.
    """
    rows = seeds.rows(groups, target, baseline)
    marks = seeds.marks(rows)
    notes = _notes(rows, target, marks)
    with style.look():
        high = ROW * len(rows)
        figure = style.canvas(1)
        write_foot(figure, HEAD + high + 0.36, notes)
        write_title(figure, f"Time to {percent(target)} test accuracy: {seeds.trained(rows)}")
        how = fitted(figure, f"{_seeds_told(rows)} · {seeds.machine(rows)}", style.WIDTH - 0.3, 1)
        style.write_at(figure, 0.1, 0.38, how, color=style.SOFT, size=9)
        left = _names(figure, rows, marks)
        free = style.WIDTH - left - sum(COLUMNS) - SIDE - 2 * GAP
        panels = []
        for wide, column, named in zip(
            (0.45 * free, 0.55 * free, SIDE), COLUMNS, (f"seconds to {percent(target)}", "speed-up", "final accuracy"),
            strict=True,
        ):  # fmt: skip
            panels.append(_panel(figure, len(rows), left, wide, named))
            left += wide + column + GAP
        _seconds(panels[0], rows)
        _speed_ups(panels[1], rows, target)
        _accuracy(panels[2], rows, target)
    return figure, _told(rows, target, notes)


def _notes(rows, target, marks):
    base = next(row for row in rows if row["is_baseline"])
    notes = ["Circle: a seed; bar: the seeds' median."]
    if any(0 < row["reached"] < row["seeds"] for row in rows):
        notes[0] += " A seed that never reached it counts as slower than all others."
    notes[0] += f" Final accuracy: mean, lowest to highest seed. Speed-ups are over {base['label']} (1×)."
    if not base["seconds"]:
        why = f"half or more of its seeds never reached {percent(target)}" if base["seeds"] else "it has no run"
        notes.append(f"There is no speed-up in time to compare with {base['label']}: {why}.")
    notes += [f"{mark} {note}" for note, mark in marks.items()]
    return [*notes, *filter(None, [seeds.left_out(rows)])]


def _seeds_told(rows):
    few, many = (f(row["seeds"] for row in rows) for f in (min, max))
    return f"{few} to {many} seeds a row" if few < many else f"{many} seed{'s' * (many > 1)} a row"


def _names(figure, rows, marks):
    """Write the labels with the marks of their notes; returns where the panels may begin."""
    ends = []
    for y, row in enumerate(rows):
        name = fitted(figure, seeds.marked(row, marks), 2.05, 3, size=9.5)
        text = style.write_at(figure, 0.1, HEAD + ROW * (y + 0.5), name, va="center", size=9.5, linespacing=1.1)
        ends.append(style.extent(figure, text).x1)
    return max(ends) + 0.15


def _panel(figure, rows, left, width, title):
    axes = style.panel(figure, left, HEAD, width, ROW * rows)
    axes.set(ylim=(rows - 0.5, -0.5), yticks=[])
    axes.grid(axis="x")
    style.write_at(figure, left, HEAD - 0.58, title, weight="bold", size=9.5)
    return axes


def _seconds(axes, rows):
    from matplotlib.ticker import MaxNLocator

    longest = max((time for row in rows for time in row["times"]), default=None)
    axes.set_xlim(0, 1.06 * (longest or 1))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    if longest is None:
        axes.set_xticks([])
    for y, row in enumerate(rows):
        if row["seconds"]:
            axes.plot([row["seconds"]] * 2, [y - 0.3, y + 0.3], color=style.BLUE, linewidth=4)
        axes.plot(
            row["times"], [y] * row["reached"], "o", markersize=6, markerfacecolor="white", markeredgecolor=style.INK,
            markeredgewidth=1.1, clip_on=False,
        )  # fmt: skip
        never = _never(row)
        if row["seconds"]:
            beside(axes, y - 0.24 * bool(never), f"{number(row['seconds'])} s", weight="bold", size=10.5)
        if never:
            folded = never.replace("seeds ", "seeds\n")
            beside(axes, y + 0.18 * bool(row["seconds"]), folded, color=style.RED, size=9, linespacing=1.05)


def _never(row):
    """How many seeds never reached the target; "" if all did."""
    of = row["seeds"]
    missing = of - row["reached"]
    if not of:
        return "no run to show"
    if not missing:
        return ""
    if of == 1:
        return "never reached it"
    return f"none of {of} seeds reached it" if missing == of else f"{missing} of {of} seeds never reached it"


def _speed_ups(axes, rows, target):
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import MaxNLocator

    most = max(1, *(row[key] or 0 for row in rows for key, *_ in BARS))
    axes.set_xlim(0, 1.06 * most)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}×" if value else "0")
    figure = axes.figure
    wide, high = figure.get_size_inches()
    left = axes.get_position().x0 * wide
    for place, (key, said, colour, hatch, text) in enumerate(BARS):
        fill = {"facecolor": colour, "hatch": hatch, "edgecolor": style.INK, "linewidth": 0.7}
        top = HEAD - 0.37 + 0.17 * place
        figure.add_artist(Rectangle(
            (left / wide, 1 - (top + 0.12) / high), 0.2 / wide, 0.11 / high, transform=figure.transFigure, **fill
        ))  # fmt: skip
        style.write_at(figure, left + 0.27, top, said.format(target=percent(target)), size=9)
        for y, row in enumerate(rows):
            middle = y + (0.19 if place else -0.19)
            if row[key]:
                axes.barh(middle, row[key], height=0.3, **fill)
            beside(axes, middle, times(row[key]), size=10, **text)
    axes.axvline(1, color=style.INK, linewidth=1.8)


def _accuracy(axes, rows, target):
    """Final accuracy on a scale that shows the differences; positions, not lengths, say how much."""
    lowest = min([target, *(row["accuracy_min"] for row in rows if row["seeds"])])
    low = 10 * math.floor(10 * lowest - 0.1)
    axes.axvline(100 * target, color=style.INK, linestyle=(0, (4, 2)), linewidth=1)
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
    axes.set_xlim(max(0, low), 100)
    axes.set_xticks([max(0, low), 100], [f"{max(0, low)}", "100%"])


# -- words --------------------------------------------------------------------------------


def _told(rows, target, notes):
    told = [
        f"Seconds of training to {percent(target)} test accuracy, the speed-up in that beside the speed-up in "
        f"images a second, and final accuracy: {seeds.trained(rows)}, {seeds.machine(rows)}."
    ]
    told += map(_row_told, rows)
    for key, said in (("speed_up_to_target", f"to {percent(target)}"), ("speed_up", "in images a second")):
        others = [row for row in rows if row[key] and not row["is_baseline"]]
        if others:
            best = max(others, key=lambda row: row[key])
            told.append(f"The largest speed-up {said} is {times(best[key])} ({best['label']}).")
    if not any(row["reached"] for row in rows):
        most = max(entry["accuracy"] for row in rows for curve in row["curves"] for entry in curve)
        told.append(f"No seed reached {percent(target)}; the highest accuracy of all evaluations is {percent(most)}.")
    return " ".join([*told, *notes[1:]])


def _row_told(row):
    if not row["seeds"]:
        return f"{row['label']}: no run to show."
    told = []
    if row["seconds"]:
        told.append(f"{number(row['seconds'])} s")
        low, high = (number(row["times"][place]) for place in (0, -1))
        told[0] += f" at the median of {row['seeds']} seeds" if row["seeds"] > 1 else ""
        told[0] += f" (those that reached it took {low} to {high} s)" if low != high else ""
    told += filter(None, [_never(row)])
    if row["speed_up_to_target"] and not row["is_baseline"]:
        told.append(f"{times(row['speed_up_to_target'])} in time")
    if row["speed_up"] and not row["is_baseline"]:
        told.append(f"{times(row['speed_up'])} in images a second")
    final = f"final accuracy {percent(row['accuracy'])}"
    if row["seeds"] > 1:
        final += f" ({percent(row['accuracy_min'])} to {percent(row['accuracy_max'])})"
    return f"{row['label']}: {', '.join([*told, final])}."

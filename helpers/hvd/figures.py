"""Figures of a Horovod job: what each rank does when, which gradient leaves when, and how far apart ranks are.

The functions return (figure, alt).
"""

import math

from ..plots import style
from ..plots.drawing import AXES, NAMES, fitted, heights, key, line_style, name_ends, row_names, write_foot, write_title
from ..plots.style import beside, clean, number

STAGES = {  # of a step, as the ranks note them: colour and hatch
    "split": (style.YELLOW, ".."), "bind": (style.GREEN, "xx"), "compute": (style.SKY, ""),
    "intervene": (style.ORANGE, "//"), "update": (style.PURPLE, "\\\\"),
}  # fmt: skip
PHASES = {"wait": (style.GREY, ".."), "reduce": (style.ORANGE, "//")}  # of a tensor
ROW = 0.5  # inches: a bar
SMALL = 0.25  # inches: a bar among many


def _look(colour, hatch):
    return {"color": colour, "hatch": hatch, "edgecolor": style.INK, "linewidth": 0.6}


# -- time ---------------------------------------------------------------------------------


def stages(ranks, title="Four stages of data parallel training") -> tuple:
    """What each rank does when, from its own time stamps; a group of rows a rank, a row a stage.

    A stage of next to no time is still a stroke in a row of its own.

    Args:
        ranks: {label: [(name of STAGES, begin, end), …]}, in milliseconds on one clock.

    Raises:
        ValueError: no rank has noted anything.
    """
    spans = [span for of in ranks.values() for span in of]
    if not spans:
        raise ValueError("no stage to draw: give {rank: [(stage, begin, end), …]} in milliseconds")
    begin = min(b for _, b, _ in spans)
    most = max(e for _, _, e in spans) - begin
    used = [name for name in STAGES if any(name == stage for stage, _, _ in spans)]
    group = 0.17 * len(used) + 0.25  # inches of a rank
    with style.look():
        figure = style.canvas(1)
        high = group * len(ranks)
        write_foot(figure, 0.95 + high + 0.5, [])
        write_title(figure, title)
        left = row_names(figure, [fitted(figure, label, 2.4, 1, size=10) for label in ranks], 0.95, group)
        key(figure, left, 0.5, [(name, *STAGES[name]) for name in used])
        axes = style.panel(figure, left, 0.95, style.WIDTH - left - 0.3, high)
        axes.set(xlim=(0, 1.005 * most), ylim=(high, 0), yticks=[], xlabel="ms")
        for place, of in enumerate(ranks.values()):
            for name, b, e in of:
                y = group * place + 0.17 * (used.index(name) + 0.5) + 0.05
                axes.barh(y, e - b, 0.17, b - begin, **_look(*STAGES[name]))
            axes.axhline(group * (place + 1) - 0.07, color=style.GRID, linewidth=0.8)
    told = []
    for label, of in ranks.items():
        sums = {name: sum(e - b for stage, b, e in of if stage == name) for name in used}
        told.append(f"{clean(label)}: " + ", ".join(f"{name} {number(ms)} ms" for name, ms in sums.items()) + ".")
    return figure, " ".join([f"{clean(title)}, {number(most)} ms in all.", *told])


def departures(tensors, backward, title="When each gradient leaves", most=30) -> tuple:
    """When each gradient was ready and when it was reduced, below the bar of the backward pass.

    Args:
        tensors: {name: (ready, began, ended)}: the moment at which the rank handed it in, and those between
            which it was reduced; milliseconds on one clock.
        backward: (begin, end) of the backward pass on the same clock.
        most: rows; where there are more tensors, some are left out evenly, and the foot says so.

    Raises:
        ValueError: there is no tensor.
    """
    if not tensors:
        raise ValueError("no gradient to draw: give {name: (ready, began, ended)} in milliseconds")
    begin, over = backward
    shown = sorted(tensors, key=lambda name: tensors[name][0])
    if len(shown) > most:
        shown = [shown[round(k * (len(shown) - 1) / (most - 1))] for k in range(most)]
    last = max(over, *(ended for *_, ended in tensors.values())) - begin
    with style.look():
        figure = style.canvas(1)
        high = SMALL * (len(shown) + 1)
        note = f"{len(shown)} of {len(tensors)} gradients are shown." if len(shown) < len(tensors) else ""
        write_foot(figure, 0.95 + high + 0.5, [note])
        write_title(figure, title)
        names = ["backward", *(fitted(figure, name, 2.6, 1, size=10) for name in shown)]
        left = row_names(figure, names, 0.95, SMALL)
        entries = [
            ("backward runs", *STAGES["compute"]),
            ("ready, waits for the other ranks or its turn", *PHASES["wait"]),
        ]
        key(figure, left, 0.5, [*entries, ("on its way", *PHASES["reduce"])])
        axes = style.panel(figure, left, 0.95, style.WIDTH - left - 0.3, high)
        first = min(0, *(tensors[name][0] - begin for name in shown))
        axes.set(xlim=(first, 1.01 * last), ylim=(len(names) - 0.5, -0.5), yticks=[], xlabel="ms")
        axes.barh(-0.08, over - begin, 0.62, 0, **_look(*STAGES["compute"]))
        for y, name in enumerate(shown, 1):
            ready, began, ended = (moment - begin for moment in tensors[name])
            axes.barh(y - 0.08, began - ready, 0.62, ready, **_look(*PHASES["wait"]))
            axes.barh(y - 0.08, ended - began, 0.62, began, **_look(*PHASES["reduce"]))
        axes.axvline(over - begin, color=style.INK, linewidth=1, linestyle=(0, (4, 3)))
    share = [(ready - begin) / (over - begin) for ready, *_ in tensors.values()]
    early = sum(ended <= over for *_, ended in tensors.values())
    return figure, (
        f"{clean(title)}. Backward takes {number(over - begin)} ms. Of {len(tensors)} gradients the first is ready "
        f"at {min(share):.0%} of it, the last at {max(share):.0%}; {early} have been reduced before backward is over."
    )


# -- lines --------------------------------------------------------------------------------


def drift(runs, title="How far apart the ranks' weights are", y="largest difference") -> tuple:
    """A value after each step, a line a run.

    Args:
        runs: {label: [value before step 0, after step 0, …]}.

    Raises:
        ValueError: no run has a value.
    """
    values = [value for of in runs.values() for value in of if math.isfinite(value)]
    if not values:
        raise ValueError("no line has a point: nothing to draw")
    from matplotlib.ticker import MaxNLocator

    with style.look():
        figure = style.canvas(1)
        names = [fitted(figure, label, NAMES - 0.3, 2) for label in runs]
        pitch, high = heights(names)
        high = max(2.2, pitch * len(names))
        write_foot(figure, 0.6 + high + 0.5, [])
        write_title(figure, title)
        axes = style.panel(figure, 0.75, 0.6, AXES, high)
        for place, of in enumerate(runs.values()):
            axes.plot(range(len(of)), of, **line_style(place), markevery=[-1], clip_on=False)
        last = max(len(of) - 1 for of in runs.values())
        low = min(0, *values)
        axes.set(xlabel="step", ylabel=clean(y), xlim=(0, 1.03 * max(last, 1)), ylim=(low, 1.06 * max(values) or 1))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 5, 10]))
        axes.grid(axis="y")
        ends = [(len(of) - 1, of[-1], number(of[-1]), name) for of, name in zip(runs.values(), names, strict=True)]
        name_ends(axes, ends, pitch)
    told = [f"{clean(label)}: {number(of[0])} at first, {number(of[-1])} at last." for label, of in runs.items()]
    return figure, " ".join([f"{clean(title)}, a line a run.", *told])


# -- bars ---------------------------------------------------------------------------------


def apart(rows, title, unit, limit=None) -> tuple:
    """Differences on a logarithmic axis, a dot a row; what is exactly 0 stands at its left end.

    Args:
        rows: {label: difference, 0 or more}.
        limit: (value, its name): a line to compare with.

    Raises:
        ValueError: there is no row.
    """
    if not rows:
        raise ValueError("no row to draw: give {label: difference}")
    from matplotlib.ticker import NullLocator

    seen = [value for value in rows.values() if value > 0] + ([limit[0]] if limit else [])
    low, high_end = (min(seen), max(seen)) if seen else (1e-16, 1)
    bottom, top = math.floor(math.log10(low)) - 1, math.floor(math.log10(high_end)) + 2
    zero = 10.0 ** (bottom - max(1, (top - bottom) // 8))  # far enough from the others to be read
    with style.look():
        figure = style.canvas(1)
        high = 0.4 * len(rows)
        write_foot(figure, 0.6 + high + 0.5, [f"Dashed line: {limit[1]}."] if limit else [])
        write_title(figure, title)
        left = row_names(figure, [fitted(figure, label, 3.4, 1, size=10) for label in rows], 0.6, 0.4)
        axes = style.panel(figure, left + 0.1, 0.6, style.WIDTH - left - 1.3, high)
        axes.set_xscale("log")
        ticks = [10.0**k for k in range(bottom, top, max(1, math.ceil((top - bottom) / 8)))]
        axes.set(xlim=(zero / 2, 5 * high_end), ylim=(len(rows) - 0.5, -0.5), yticks=[], xlabel=clean(unit))
        axes.set_xticks([zero, *ticks], ["0", *(f"{tick:.0e}" for tick in ticks)])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(axis="x")
        for y, value in enumerate(rows.values()):
            right = limit is None or value <= limit[0]
            axes.plot(value or zero, y - 0.08, "o" if right else "X", color=style.BLUE if right else style.RED,
                      markersize=9, markeredgecolor="white", clip_on=False)  # fmt: skip
            beside(axes, y - 0.08, f"{value:.1e}" if value else "0")
        if limit:
            axes.axvline(limit[0], color=style.INK, linewidth=1, linestyle=(0, (4, 3)))
    told = "; ".join(f"{clean(label)} {f'{value:.1e}' if value else '0'}" for label, value in rows.items())
    return figure, f"{clean(title)}: {told}." + (f" Dashed line: {limit[1]}, {limit[0]:g}." if limit else "")


def bars(rows, title, unit, said=number, predicted=None, marked=(), foot="") -> tuple:
    """A bar a row, with its value beside it.

    Args:
        rows: {label: value, 0 or more}.
        said: how a value is written.
        predicted: {label: value}; a diamond on the row, and in the text beside it.
        marked: labels of the rows that are drawn in the other colour.

    Raises:
        ValueError: there is no row.
    """
    if not rows:
        raise ValueError("no row to draw: give {label: value}")
    predicted = predicted or {}
    with style.look():
        figure = style.canvas(1)
        high = ROW * len(rows)
        write_foot(figure, 0.6 + high + 0.5, [foot])
        write_title(figure, title)
        left = row_names(figure, [fitted(figure, label, 3.4, 2, size=10) for label in rows], 0.6, ROW)
        axes = style.panel(figure, left, 0.6, style.WIDTH - left - 2.2, high)
        most = max([value for value in (*rows.values(), *predicted.values()) if math.isfinite(value)], default=0) or 1
        axes.set(xlim=(0, 1.05 * most), ylim=(len(rows) - 0.5, -0.5), yticks=[], xlabel=clean(unit))
        for y, (label, value) in enumerate(rows.items()):
            look = _look(style.ORANGE, "//") if label in marked else _look(style.SKY, "")
            if math.isfinite(value):
                axes.barh(y - 0.08, value, 0.56, **look)
            guess = ""
            if label in predicted:
                guess = f", predicted {said(predicted[label])}"
                axes.plot(predicted[label], y - 0.08, "D", color=style.INK, markeredgecolor="white", markersize=8)
            beside(axes, y - 0.08, f"{said(value)}{guess}")
    told = [f"{clean(label)} {said(value)}" for label, value in rows.items()]
    guesses = [f"{clean(label)} {said(value)}" for label, value in predicted.items()]
    text = f"{clean(title)}, {clean(unit)}: {'; '.join(told)}."
    return figure, text + (f" Predicted: {'; '.join(guesses)}." if guesses else "")

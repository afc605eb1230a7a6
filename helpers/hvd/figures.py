"""Figures of a Horovod job: what each rank does when, which gradient leaves when, and how far apart ranks are.

The functions return (figure, alt).
"""

import math

from ..plots import style
from ..plots.layout import DASHED, bar, lines, name_rows, rows, sheet
from ..records.words import clean, number

STAGES = {  # of a step, as the ranks note them: colour and hatch
    "split": (style.YELLOW, ".."), "bind": (style.GREEN, "xx"), "compute": (style.SKY, ""),
    "intervene": (style.ORANGE, "//"), "update": (style.PURPLE, "\\\\"),
}  # fmt: skip
PHASES = {"wait": (style.GREY, ".."), "reduce": (style.ORANGE, "//")}  # of a tensor


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
    thick = 0.8 / len(used)  # of the rank's group of rows
    key, words = [(name, *STAGES[name]) for name in used], []
    with sheet(title, (0.17 * len(used) + 0.25) * len(ranks), key=key) as (figure, [axes]):
        name_rows(axes, list(ranks), 2.4, 1)
        axes.set(xlim=(0, 1.005 * most), xlabel="ms")
        for y, (label, of) in enumerate(ranks.items()):
            for name, b, e in of:
                bar(axes, y + thick * (used.index(name) + 0.5) - 0.4, e - b, STAGES[name], b - begin, thick)
            axes.axhline(y + 0.5, color=style.GRID, linewidth=0.8)
            sums = {name: sum(e - b for stage, b, e in of if stage == name) for name in used}
            words.append(f"{clean(label)}: " + ", ".join(f"{name} {number(ms)} ms" for name, ms in sums.items()) + ".")
    return figure, " ".join([f"{clean(title)}, {number(most)} ms in all.", *words])


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
    notes = [f"{len(shown)} of {len(tensors)} gradients are shown."] * (len(shown) < len(tensors))
    key = [
        ("backward runs", *STAGES["compute"]), ("ready, waits for the other ranks or its turn", *PHASES["wait"]),
        ("all-reduce", *PHASES["reduce"]),
    ]  # fmt: skip
    with sheet(title, 0.25 * (len(shown) + 1), key=key, notes=notes) as (figure, [axes]):
        name_rows(axes, ["backward", *shown], 2.6, 1)
        axes.set(xlim=(min(0, *(tensors[name][0] - begin for name in shown)), 1.01 * last), xlabel="ms")
        bar(axes, 0, over - begin, STAGES["compute"], 0, 0.62)
        for y, name in enumerate(shown, 1):
            ready, began, ended = (moment - begin for moment in tensors[name])
            bar(axes, y, began - ready, PHASES["wait"], ready, 0.62)
            bar(axes, y, ended - began, PHASES["reduce"], began, 0.62)
        axes.axvline(over - begin, color=style.INK, linewidth=1, linestyle=DASHED)
    share = [(ready - begin) / (over - begin) for ready, *_ in tensors.values()]
    early = sum(ended <= over for *_, ended in tensors.values())
    return figure, (
        f"{clean(title)}. Backward takes {number(over - begin)} ms. Of {len(tensors)} gradients the first is ready "
        f"at {min(share):.0%} of it, the last at {max(share):.0%}; {early} have been reduced before backward is over."
    )


# -- values -------------------------------------------------------------------------------


def drift(runs, title="How far apart the ranks' weights are", y="largest difference") -> tuple:
    """A value after each step, a line a run.

    Args:
        runs: {label: [value before step 0, after step 0, …]}.

    Raises:
        ValueError: no run has a value.
    """
    figure = lines(title, {label: dict(enumerate(of)) for label, of in runs.items()}, "step", y, number, low=0)
    words = [f"{clean(label)}: {number(of[0])} at first, {number(of[-1])} at last." for label, of in runs.items()]
    return figure, " ".join([f"{clean(title)}, a line a run.", *words])


def apart(differences, title, unit, limit=None) -> tuple:
    """Differences on a logarithmic axis, a dot a row; what is exactly 0 stands at its left end.

    Args:
        differences: {label: difference, 0 or more}.
        limit: (value, its name): a line to compare with.

    Raises:
        ValueError: there is no row.
    """
    if not differences:
        raise ValueError("no row to draw: give {label: difference}")
    seen = [value for value in differences.values() if value > 0] + ([limit[0]] if limit else [])
    low, high = (min(seen), max(seen)) if seen else (1e-16, 1)
    bottom, top = math.floor(math.log10(low)) - 1, math.floor(math.log10(high)) + 2
    zero = 10.0 ** (bottom - max(1, (top - bottom) // 8))  # far enough from the others to be read
    note = f"Dashed line: {limit[1]}, {limit[0]:g}." if limit else ""
    with sheet(title, 0.4 * len(differences), notes=[note]) as (figure, [axes]):
        name_rows(axes, list(differences), 3.4, 1)
        axes.set_xscale("log")
        ticks = [10.0**k for k in range(bottom, top, max(1, math.ceil((top - bottom) / 8)))]
        axes.set(xlim=(zero / 2, 5 * high), xlabel=clean(unit))
        axes.set_xticks([zero, *ticks], ["0", *(f"{tick:.0e}" for tick in ticks)])
        axes.minorticks_off()
        axes.grid(axis="x")
        for y, value in enumerate(differences.values()):
            marker, colour = ("o", style.BLUE) if limit is None or value <= limit[0] else ("X", style.RED)
            axes.plot(value or zero, y, marker, color=colour, markersize=9, markeredgecolor="white", clip_on=False)
            style.beside(axes, y, _exactly(value))
        if limit:
            axes.axvline(limit[0], color=style.INK, linewidth=1, linestyle=DASHED)
    words = "; ".join(f"{clean(label)} {_exactly(value)}" for label, value in differences.items())
    return figure, f"{clean(title)}: {words}. {note}".strip()


def _exactly(value):
    return f"{value:.1e}" if value else "0"


def bars(values, title, unit, said=number, predicted=None, marked=(), foot="") -> tuple:
    """A bar a row, with its value beside it.

    Args:
        values: {label: value, 0 or more}.
        said: how a value is written.
        predicted: {label: value}; a diamond on the row, and in the text beside it.
        marked: labels of the rows that are drawn in the other colour.

    Raises:
        ValueError: there is no row.
    """
    if not values:
        raise ValueError("no row to draw: give {label: value}")
    named, marks, predicted = [], [], predicted or {}
    for y, (label, value) in enumerate(values.items()):
        text = said(value)
        if label in predicted:
            text += f", predicted {said(predicted[label])}"
            marks.append((y, predicted[label], "D", style.INK))
        named.append((label, [(value, (style.ORANGE, "//") if label in marked else (style.SKY, ""))], text))
    figure = rows(title, unit, named, marks=marks, notes=[foot])
    return figure, f"{clean(title)}, {clean(unit)}: {'; '.join(f'{clean(row[0])} {row[2]}' for row in named)}."

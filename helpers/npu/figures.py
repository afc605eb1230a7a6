"""Figures of the move to NPUs: who worked where, what was compiled, and whether the training is still the same.

The functions return (figure, alt). None of them shows speed, of which an emulated card has none to show;
`on` names the cards in the title ("emulated NPU").
"""

import math

from ..plots import style
from ..plots.drawing import AXES, NAMES, fitted, heights, key, line_style, name_ends, row_names, write_foot, write_title
from ..plots.style import beside, clean, number

EMULATED = "emulated NPU"
PROCESSES = ((style.SKY, ""), (style.ORANGE, "//"), (style.GREEN, "xx"), (style.PURPLE, ".."))  # colour, hatch
ROW = 0.5  # inches: a bar


# -- bars ---------------------------------------------------------------------------------


def cards(runs, predicted=None, on=EMULATED) -> tuple:
    """Operators that each process ran on each card, a group of bars a run.

    Args:
        runs: {label: [{card: operators} of process 0, of process 1, …]}.
        predicted: {label: card on which process 1 was expected}; marked.

    Raises:
        ValueError: no process has used a card.
    """
    used = sorted({int(card) for processes in runs.values() for of in processes for card in of})
    if not used:
        raise ValueError("no process has used a card: nothing to draw")
    rows = [(label, card) for label in runs for card in range(used[-1] + 1)]
    most = max(sum(of.get(c, 0) for of in runs[label]) for label, c in rows)
    count = max(map(len, runs.values()))
    title = f"Operators on each card ({on})"
    with style.look():
        figure = style.canvas(1)
        high = ROW * len(rows)
        notes = ["Dashed frame: the card on which process 1 was predicted."] if predicted else []
        write_foot(figure, 0.95 + high + 0.5, notes)
        write_title(figure, title)
        names = [f"{fitted(figure, label, 3, 1, size=10)}: npu:{card}" for label, card in rows]
        left = row_names(figure, names, 0.95, ROW)
        key(figure, left, 0.5, [(f"process {rank}", *PROCESSES[rank % len(PROCESSES)]) for rank in range(count)])
        axes = style.panel(figure, left, 0.95, style.WIDTH - left - 1.1, high)
        axes.set(xlim=(0, 1.04 * most), ylim=(len(rows) - 0.5, -0.5), yticks=[], xlabel="operators")
        for y, (label, card) in enumerate(rows):
            begin = 0
            for rank, of in enumerate(runs[label]):
                if not of.get(card):
                    continue
                colour, hatch = PROCESSES[rank % len(PROCESSES)]
                look = {"color": colour, "hatch": hatch, "edgecolor": style.INK, "linewidth": 0.6}
                axes.barh(y - 0.08, of[card], 0.56, begin, **look)
                begin += of[card]
            beside(axes, y - 0.08, f"{begin:,}" if begin else "idle", weight="bold")
            if (predicted or {}).get(label) == card:
                axes.barh(y - 0.08, most, 0.78, color="none", edgecolor=style.INK, linestyle=(0, (4, 3)), linewidth=1.2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    return figure, " ".join([f"{title}.", *(_cards_told(label, of, predicted) for label, of in runs.items())])


def _cards_told(label, processes, predicted):
    told = [
        f"process {rank} on " + (" and ".join(f"npu:{card} ({of[card]:,})" for card in sorted(of)) or "none")
        for rank, of in enumerate(processes)
    ]
    guess = f" (process 1 predicted on npu:{predicted[label]})" if label in (predicted or {}) else ""
    return f"{clean(label)}: {', '.join(told)}{guess}."


def counted(rows, whole, title, unit, predicted=None, on=EMULATED) -> tuple:
    """How many of `whole` things each version counted, a bar each; the line is all of them.

    Args:
        rows: {label: number}.
        predicted: {label: number}, written beside.

    Raises:
        ValueError: there is no row.
    """
    if not rows:
        raise ValueError("no row to draw: give {label: number}")
    from matplotlib.ticker import MaxNLocator

    title = f"{clean(title)} ({on})"
    with style.look():
        figure = style.canvas(1)
        high = ROW * len(rows)
        write_foot(figure, 0.6 + high + 0.5, [])
        write_title(figure, title)
        left = row_names(figure, [fitted(figure, label, 3.4, 2, size=10) for label in rows], 0.6, ROW)
        axes = style.panel(figure, left, 0.6, style.WIDTH - left - 2.1, high)
        most = max(whole, *rows.values())
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 5, 10]))
        axes.set(xlim=(0, 1.03 * most), ylim=(len(rows) - 0.5, -0.5), yticks=[], xlabel=clean(unit))
        for y, (label, value) in enumerate(rows.items()):
            colour, hatch = (style.SKY, "") if value == whole else (style.ORANGE, "//")
            axes.barh(y - 0.08, value, 0.56, color=colour, hatch=hatch, edgecolor=style.INK, linewidth=0.6)
            guess = f", predicted {predicted[label]:,}" if label in (predicted or {}) else ""
            beside(axes, y - 0.08, f"{value:,} of {whole:,}{guess}")
        axes.axvline(whole, color=style.INK, linewidth=1.5)
    told = [f"{clean(label)} {value:,}" for label, value in rows.items()]
    guesses = [f"{clean(label)} {value:,}" for label, value in (predicted or {}).items()]
    said = f"{title}, of {whole:,} {clean(unit)}: {'; '.join(told)}."
    return figure, said + (f" Predicted: {'; '.join(guesses)}." if guesses else "")


# -- lines --------------------------------------------------------------------------------


def losses(runs, title="Loss", on=EMULATED) -> tuple:
    """The loss after each step, a line a run; of equal runs the first shows below the others.

    Args:
        runs: {label: [loss of step 0, 1, …]}.

    Raises:
        ValueError: no run has a loss.
    """
    lines = {label: dict(enumerate(values)) for label, values in runs.items()}
    title = f"{clean(title)} ({on})"
    figure = _lines(lines, title, "step", "loss", lambda value: number(value))
    first, *others = runs.values()
    off = max((abs(a - b) for other in others for a, b in zip(first, other, strict=False)), default=0)
    told = [f"{clean(label)}: from {number(v[0])} to {number(v[-1])} in {len(v)} steps." for label, v in runs.items()]
    said = f"The lines are {'equal' if off == 0 else f'at most {number(off)} apart'} where they have the same steps."
    return figure, " ".join([f"{title}, a line a run.", *told, said])


def kernels(runs, predicted=None, on=EMULATED) -> tuple:
    """Kernels compiled so far, step by step, a line a run.

    Args:
        runs: {label: [kernels compiled until the end of step 0, 1, …]}.
        predicted: (label, step, number): how many kernels that step was expected to compile.

    Raises:
        ValueError: no run has a step.
    """
    title = f"Kernels compiled until the end of each step ({on})"
    lines = {label: dict(enumerate(values)) for label, values in runs.items()}
    marks = []
    if predicted:
        label, step, expected = predicted
        marks = [(step, runs[label][step - 1] + expected, f"predicted: {expected:,} more")]
    figure = _lines(lines, title, "step", "kernels", lambda value: f"{value:,}", marks, low=0, stairs=True)
    told = []
    for label, values in runs.items():
        new = {step: b - a for step, (a, b) in enumerate(zip([0, *values[:-1]], values, strict=True)) if b > a}
        told.append(f"{clean(label)}: " + ", ".join(f"{n:,} in step {step}" for step, n in new.items()) + ".")
    if predicted:
        told.append(f"Predicted: {predicted[2]:,} new ones in step {predicted[1]} ({clean(predicted[0])}).")
    return figure, " ".join([f"{title}. New ones:", *told])


def learning_rates(runs, predicted=None, on=EMULATED) -> tuple:
    """The learning rate of every epoch, a line a run.

    Args:
        runs: {label: [rate in epoch 0, 1, …]}.
        predicted: {epoch: rate}; marked.

    Raises:
        ValueError: no run has an epoch.
    """
    title = f"Learning rate over the epochs ({on})"
    lines = {label: dict(enumerate(values)) for label, values in runs.items()}
    marks = [(epoch, rate, f"predicted: {rate:g}") for epoch, rate in (predicted or {}).items()]
    figure = _lines(lines, title, "epoch", "learning rate", lambda value: f"{value:.3g}", marks, log=10, stairs=True)
    told = []
    for label, values in runs.items():
        changes = [f"{rate:g} from epoch {n}" for n, rate in enumerate(values) if n and rate != values[n - 1]]
        told.append(f"{clean(label)}: {values[0]:g} at first, {', '.join(changes) or 'and never another'}.")
    told += [f"Predicted: {rate:g} in epoch {epoch}." for epoch, rate in (predicted or {}).items()]
    return figure, " ".join([f"{title}, a line a run.", *told])


def scales(runs, on=EMULATED) -> tuple:
    """The loss scale of every step, a line a run; a cross is a step that was left out.

    Args:
        runs: {label: [(scale, whether the step was left out), …]}.

    Raises:
        ValueError: no run has a step.
    """
    title = f"Loss scale over the steps ({on})"
    lines = {label: {n: scale for n, (scale, _) in enumerate(steps)} for label, steps in runs.items()}
    left_out = {label: [n for n, (_, left) in enumerate(steps) if left] for label, steps in runs.items()}
    marks = [(n, lines[label][n], "") for label, steps in left_out.items() for n in steps]
    foot = "Cross: the gradients have overflown, and the step is left out."
    figure = _lines(lines, title, "step", "scale", lambda value: f"{value:,.0f}", marks, log=2, foot=foot, stairs=True)
    told = [
        f"{clean(label)}: {line[0]:,.0f} at first, {line[len(line) - 1]:,.0f} at last, "
        f"steps left out: {left_out[label]}."
        for label, line in lines.items()
    ]
    return figure, " ".join([f"{title}, a line a run.", *told])


def _lines(lines, title, x, y, said, marks=(), log=None, low=None, foot="", stairs=False):
    """Lines {label: {x: y}} with their names beside their ends; marks are (x, y, text) of crosses; `log` is a base."""
    from matplotlib.ticker import MaxNLocator, NullLocator

    if not any(lines.values()):
        raise ValueError("no line has a point: nothing to draw")
    points = [(a, b) for line in lines.values() for a, b in line.items()] + [mark[:2] for mark in marks]
    with style.look():
        figure = style.canvas(1)
        names = [fitted(figure, label, NAMES - 0.3, 2) for label in lines]  # values take up to six digits
        pitch, high = heights(names)
        high = max(2.2, pitch * len(names))
        write_foot(figure, 0.6 + high + 0.5, [foot])
        write_title(figure, title)
        axes = style.panel(figure, 0.75, 0.6, AXES, high)
        for place, line in enumerate(lines.values()):
            how = "steps-mid" if stairs else "default"
            look = {**line_style(place), "drawstyle": how, "markevery": [-1], "clip_on": False}
            axes.plot(list(line), list(line.values()), **look)
        first, last = min(a for a, _ in points), max(a for a, _ in points)
        for a, b, text in marks:
            axes.plot(a, b, "X", color=style.RED, markersize=9, markeredgecolor="white", zorder=5, clip_on=False)
            side, where = (1, "left") if a < (first + last) / 2 else (-1, "right")
            axes.annotate(
                text, (a, b), xytext=(9 * side, 0), textcoords="offset points", ha=where, va="center", color=style.RED,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5}, zorder=4, size=9,
            )  # fmt: skip
        axes.set(xlabel=x, ylabel=y, xlim=(first, 1.03 * max(last, 1)))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 5, 10]))
        values = [b for _, b in points if math.isfinite(b)]
        if log:
            axes.set_yscale("log", base=log)
            axes.set_ylim(min(values) / 2.5, max(values) * 2.5)
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter(lambda value, _: f"2^{math.log2(value):.0f}" if log == 2 else f"{value:g}")
        else:
            axes.set_ylim(min([*values, low if low is not None else math.inf]), max(values) * 1.06 or 1)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.grid(axis="y")
        ends = []
        for line, name in zip(lines.values(), names, strict=True):
            end = max(line)
            ends.append((end, line[end], said(line[end]), name))
        name_ends(axes, ends, pitch)
    return figure

"""What a tuner tried: the gain of each plan, its cost, and why the others were dropped."""

import math

from ..plots import style
from ..plots.drawing import NAMES, fitted, row_names, write_foot, write_title
from ..plots.style import clean, number, times

UNTIMED = ("rejected", "failed", "skipped")
ROW = 0.52  # inches: a plan
COLUMNS = (("speed-up", 0.1), ("compile", 0.95), ("pays at step", 1.68))  # inches from where the numbers begin
NUMBERS = 2.75  # inches


def plans(rows, title) -> tuple:
    """The speed-up of each plan of a tuner over eager, what it cost to compile, and why others were dropped.

    Args:
        rows: those of `model.tuner.rows()`.

    Raises:
        ValueError: there are no rows.
    """
    if not rows:
        raise ValueError("no plan to draw: give the rows of model.tuner, after some training steps")
    timed = [row for row in rows if row["speed_up"] is not None and row["status"] not in UNTIMED]
    timed.sort(key=lambda row: -row["speed_up"])
    dropped = [row for row in rows if row not in timed]
    with style.look():
        figure = style.canvas(1)
        notes = ["Whisker: middle half of the rounds."] * bool(timed)
        notes += ["No plan has been timed."] * (not timed)
        reasons = [fitted(figure, _reason(row), style.WIDTH - 0.65, 3) for row in dropped]
        top = 0.86 if timed else 0.1
        list_top = top + ROW * len(timed) + 0.45
        list_high = 0.3 * bool(dropped) + sum(0.09 + 0.17 * len(reason.splitlines()) for reason in reasons)
        write_foot(figure, list_top + list_high + 0.05, notes)
        write_title(figure, title)
        if timed:
            _gains(figure, top, timed)
        _dropped(figure, list_top, reasons)
    told = [*map(_plan_told, timed), *(f"{_reason(row)}." for row in dropped), *([] if timed else notes)]
    return figure, " ".join([f"{clean(title)}: speed-up of a training step over eager.", *told])


def _gains(figure, top, rows):
    """Bars, and beside them what each plan cost."""
    from matplotlib.ticker import MaxNLocator

    chosen = [row["status"] == "chosen" for row in rows]
    names = ["✓ " * marked + row["plan"] for row, marked in zip(rows, chosen, strict=True)]
    left = row_names(figure, [fitted(figure, name, NAMES, 2, size=10) for name in names], top, ROW)
    begin = style.WIDTH - NUMBERS
    axes = style.panel(figure, left, top, begin - left, ROW * len(rows))
    axes.set(ylim=(len(rows) - 0.5, -0.5), yticks=[], xlim=(0, 1.08 * max(1, *(row["speed_up_q3"] for row in rows))))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}×" if value else "0")
    axes.grid(axis="x")
    axes.axvline(1, color=style.INK, linewidth=1.8, zorder=3)
    axes.annotate(
        "eager 1×", (1, 1), xycoords=("data", "axes fraction"), xytext=(0, 3), textcoords="offset points", size=9,
        ha="center" if axes.get_xlim()[1] < 5 else "left", annotation_clip=False,
    )  # fmt: skip
    for words, x in COLUMNS:
        style.write_at(figure, begin + x, top - 0.28, words, weight="bold", size=9.5)
    for y, (row, marked) in enumerate(zip(rows, chosen, strict=True)):
        _bar(axes, y - 0.08, row)
        place = top + ROW * (y + 0.42)
        for words, (_, x) in zip((times(row["speed_up"]), _seconds(row), _pays(row)), COLUMNS, strict=True):
            weight = "bold" if marked else "normal"
            style.write_at(figure, begin + x, place, words, va="center", size=10, weight=weight)
        if marked:
            style.write_at(figure, begin + 0.1, place + 0.19, "chosen", va="center", size=9)


def _bar(axes, y, row):
    fills = {"chosen": (style.BLUE, ""), "baseline": (style.GREY, "")}
    colour, hatch = fills.get(row["status"], (style.SKY, "//"))
    value = row["speed_up"]
    axes.barh(y, value, height=0.46, color=colour, hatch=hatch, edgecolor=style.INK, linewidth=0.8)
    spread = [[max(0, value - row["speed_up_q1"])], [max(0, row["speed_up_q3"] - value)]]
    axes.errorbar(value, y, xerr=spread, color=style.INK, capsize=3.5, linewidth=1.4)


def _seconds(row):
    return f"{number(row['compile_s'])} s" if row["compile_s"] else "–"


def _pays(row):
    if row["status"] == "baseline" or not row["compile_s"]:
        return "–"
    return "never" if row["break_even"] is None else f"{math.ceil(row['break_even']):,}"


def _dropped(figure, top, reasons):
    if not reasons:
        return
    style.write_at(figure, 0.1, top, "Not timed", weight="bold", size=9.5)
    top += 0.25
    for reason in reasons:
        style.write_at(figure, 0.1, top, "✗", size=10, color=style.RED, weight="bold")
        style.write_at(figure, 0.35, top, reason, size=9, linespacing=1.25)
        top += 0.09 + 0.17 * len(reason.splitlines())


def _reason(row):
    why = clean(row["why"]).rstrip(".") or "no reason was given"
    return f"{clean(row['plan'])} – {row['status']}: {why}"


def _plan_told(row):
    told = f"{clean(row['plan'])}: {times(row['speed_up'])}"
    if row["status"] == "baseline":
        return f"{told}, what the others are compared with."
    told += f" (middle half {times(row['speed_up_q1'])} to {times(row['speed_up_q3'])})"
    if row["compile_s"]:
        pays = "never pays" if row["break_even"] is None else f"pays at step {_pays(row)}"
        told += f", {_seconds(row)} to compile, which {pays}"
    return told + (", chosen." if row["status"] == "chosen" else ".")

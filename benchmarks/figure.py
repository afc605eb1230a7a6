"""The figure of docs/project/benchmarks.md: how far beyond, or short of, each target the measured value is."""

from helpers.plots import style
from helpers.plots.layout import name_rows, sheet

from .records import verdicts
from .table import amount, goal, measured, said

ROW, NAMES = 0.3, 3.6  # inches: a row, for names
LOOKS = {True: (style.SKY, "", "o"), False: (style.ORANGE, "//", "X")}  # met, missed: colour, hatch, mark
NAME = {True: "met, ends in a dot", False: "missed, hatched, ends in a cross"}
MARKS = (0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 100, 1000)  # of the axis
TITLE = "How far from the limit"
NOTE = (
    "Each bar goes from the target, the line at 1×, to what was measured; 2× to the right is twice as good as "
    "asked for, 0.5× half as good. Logarithmic."
)


def limits(records) -> tuple | None:
    """(figure, alt text) of the targets of all records; None where no target was measured."""
    told = [verdict for name, record in records.items() for verdict in verdicts(record, name)]
    drawn = [verdict for verdict in told if verdict.factor is not None and verdict.met is not None]
    if not drawn:
        return None
    left_out = _by_reason([verdict for verdict in told if verdict not in drawn])
    notes = [NOTE, f"Without a bar: {left_out}." if left_out else ""]
    key = [(NAME[met], *LOOKS[met][:2]) for met in (True, False)]
    with sheet(TITLE, ROW * len(drawn), key=key, notes=notes) as (figure, [axes]):
        name_rows(axes, [f"{one.benchmark}: {one.what}" for one in drawn], NAMES, 1)
        _bars(axes, drawn)
    return figure, _alt(drawn, notes)


def _by_reason(left_out):
    """Verdicts in words, each reason once."""
    names = {}
    for one in left_out:
        names.setdefault(f"{measured(one)}, {said(one)}", {}).setdefault(one.benchmark, []).append(one.what)
    listed = {
        words: ", ".join(f"{benchmark} ({'; '.join(whats)})" for benchmark, whats in of.items())
        for words, of in names.items()
    }
    return "; ".join(f"{who}: {words}" for words, who in listed.items())


def _bars(axes, drawn):
    ends = [1, *(verdict.factor for verdict in drawn)]
    axes.set_xscale("log")
    axes.set(xlim=(min(0.5, min(ends) / 1.3), max(2, max(ends) * 1.3)))
    low, high = axes.get_xlim()
    axes.set_xticks([mark for mark in MARKS if low <= mark <= high], minor=False)
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    axes.grid(axis="x")
    axes.axvline(1, color=style.INK, linewidth=1.2)
    for y, verdict in enumerate(drawn):
        colour, hatch, mark = LOOKS[verdict.met]
        axes.barh(
            y, verdict.factor - 1, left=1, height=0.5, color=colour, hatch=hatch, edgecolor=style.INK, linewidth=0.7
        )
        axes.plot(verdict.factor, y, mark, color=style.INK, markersize=6)
        style.beside(axes, y, f"{amount(verdict.value, verdict.unit)} ({goal(verdict)})")


def _alt(drawn, notes):
    told = [
        f"{one.benchmark}, {one.what}: {measured(one)}, target {goal(one)}, "
        f"{'met' if one.met else 'missed'}, {style.times(one.factor)}."
        for one in drawn
    ]
    return " ".join([f"{TITLE}: bars from each target to what was measured.", *told, *filter(None, notes)])

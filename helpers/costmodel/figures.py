"""Figures of the cost model: predicted against measured, scaling to many devices, and what is left over.

The functions return (figure, alt), the text computed from the numbers that are drawn.
"""

import math

from .. import costmodel
from ..plots import style
from ..plots.drawing import fitted, heights, key, line_style, name_ends, row_names, write_foot, write_title
from ..plots.style import beside, clean, number, percent

ROW = 0.46  # inches
REGIMES = {costmodel.COMPUTE: style.GREEN, costmodel.BANDWIDTH: style.ORANGE, costmodel.LATENCY: style.PURPLE}
MARKS = {costmodel.COMPUTE: "o", costmodel.BANDWIDTH: "s", costmodel.LATENCY: "D"}
PARTS = {  # of a step: colour and hatch
    "computing": (style.SKY, ""), "taken from computing": (style.YELLOW, ".."), "waiting for the network":
    (style.ORANGE, "//"), "waiting for the slowest": (style.GREY, "xx"),
}  # fmt: skip


def predicted(rows, title="Predicted and measured steps", readers=None) -> tuple:
    """Measured steps as bars, the model's prediction as a diamond, its error beside it.

    Args:
        rows: {label: {"predicted": s, "measured": s}}. readers: {label: s}, the reader's own predictions, a circle.

    Raises:
        ValueError: there is no row.
    """
    if not rows:
        raise ValueError("no step to draw: give {label: {'predicted': s, 'measured': s}}")
    readers = {name: value for name, value in (readers or {}).items() if name in rows and value is not None}
    errors = {name: costmodel.error(of["predicted"], of["measured"]) for name, of in rows.items()}
    most = max([*readers.values(), *(value for of in rows.values() for value in (of["predicted"], of["measured"]))])
    worst = max(errors, key=lambda name: abs(errors[name]))
    summary = f"Largest error: {errors[worst]:+.1%} ({clean(worst)})."
    with style.look():
        figure = style.canvas(1)
        high = ROW * len(rows)
        write_foot(figure, 0.9 + high + 0.5, [summary])
        write_title(figure, title)
        left = row_names(figure, [fitted(figure, label, 3, 2, size=10) for label in rows], 0.9, ROW)
        key(figure, left, 0.5, [("measured, median", style.SKY, "")])
        style.write_at(figure, left + 1.8, 0.5, "◆ the model", size=9)
        if readers:
            style.write_at(figure, left + 2.8, 0.5, "● the reader", size=9, color=style.RED)
        axes = style.panel(figure, left, 0.9, style.WIDTH - left - 2.1, high)
        axes.set(xlim=(0, 1.05e3 * most), ylim=(len(rows) - 0.5, -0.5), yticks=[], xlabel="ms a step")
        for y, (name, of) in enumerate(rows.items()):
            axes.barh(y - 0.08, 1e3 * of["measured"], 0.56, color=style.SKY, edgecolor=style.INK, linewidth=0.6)
            axes.plot(1e3 * of["predicted"], y - 0.08, "D", color=style.INK, markeredgecolor="white", markersize=8)
            if name in readers:
                axes.plot(1e3 * readers[name], y - 0.08, "o", color=style.RED, markeredgecolor="white", markersize=8)
            beside(axes, y - 0.08, f"{number(1e3 * of['measured'])} ms, error {errors[name]:+.1%}")
    told = [
        f"{clean(name)}: measured {number(1e3 * of['measured'])} ms, predicted {number(1e3 * of['predicted'])} ms, "
        f"error {errors[name]:+.1%}"
        + (f", the reader said {number(1e3 * readers[name])} ms" if name in readers else "")
        for name, of in rows.items()
    ]
    return figure, f"{clean(title)}. {'; '.join(told)}. {summary}"


def sweep(seconds, link, devices, title="All-reduce by size") -> tuple:
    """Measured all-reduces and the fitted line of a ring, on logarithmic axes, with the largest residual.

    Args:
        seconds: {bytes: s}.
    """
    if not seconds:
        raise ValueError("no all-reduce to draw: give {bytes: seconds}")
    line = {size: sum(costmodel.all_reduce(size, devices, link)) for size in seconds}
    off = {size: line[size] / s - 1 for size, s in seconds.items()}
    worst = max(off, key=lambda size: abs(off[size]))
    said = (
        f"Latency {number(1e6 * link.latency)} µs a message, bandwidth {number(link.bandwidth / 1e6)} MB/s; "
        f"largest residual {off[worst]:+.0%} at {_bytes(worst)}."
    )
    with style.look():
        figure = style.canvas(1)
        write_foot(figure, 3.7, [said])
        write_title(figure, title)
        axes = style.panel(figure, 0.8, 0.6, 7.6, 2.6)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.plot(list(line), [1e3 * s for s in line.values()], color=style.INK, linewidth=1.6, label="fitted")
        axes.plot(list(seconds), [1e3 * s for s in seconds.values()], "o", color=style.BLUE, markersize=7)
        axes.set_xticks(list(seconds), [_bytes(size) for size in seconds])
        powers = range(*(math.floor(math.log10(1e3 * end(seconds.values()))) + k for k, end in enumerate((min, max))))
        axes.set_yticks([10.0**k for k in powers], [f"{10.0**k:g}" for k in powers])
        axes.minorticks_off()
        axes.set(ylabel="ms", xlabel="size of the tensor (points: measured; line: fitted)")
        axes.grid(axis="y")
    points = ", ".join(f"{_bytes(size)} {number(1e3 * s)} ms" for size, s in seconds.items())
    return figure, f"{clean(title)} on {devices} devices: {points}. {said}"


def scaling(curves, title="From 1 to 1,024 devices", note="", y="speed-up over one device") -> tuple:
    """Speed-up over devices, a line a case, its regime by colour and mark at each point; the ideal dashed.

    Args:
        curves: {label: [costmodel.Step, …]}, each from one device on.

    Raises:
        ValueError: there is no curve, or one does not begin with one device.
    """
    if not curves or any(not of or of[0].devices != 1 for of in curves.values()):
        raise ValueError("no curve to draw: give {label: steps}, the first of each on one device")
    with style.look():
        figure = style.canvas(1)
        names = [fitted(figure, label, 1.85, 2) for label in curves]
        pitch, high = heights(names)
        write_foot(figure, 0.95 + high + 0.5, [note])
        write_title(figure, title)
        key(figure, 0.75, 0.5, [(name, colour, "") for name, colour in REGIMES.items()])
        axes = style.panel(figure, 0.75, 0.95, 4.95, high)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        most = max(step.devices for of in curves.values() for step in of)
        axes.plot([1, most], [1, most], color=style.GREY, linestyle=(0, (4, 3)), linewidth=1.2)
        ends = []
        looks = [{"color": style.INK, "linestyle": line_style(place)["linestyle"]} for place in range(len(curves))]
        for place, of in enumerate(curves.values()):
            ups = [step.rate / of[0].rate for step in of]
            axes.plot([s.devices for s in of], ups, **looks[place], linewidth=1.6)
            for step, up in zip(of, ups, strict=True):
                axes.plot(step.devices, up, MARKS[step.regime], color=REGIMES[step.regime], markersize=6,
                          markeredgecolor="white", markeredgewidth=0.6)  # fmt: skip
            ends.append((of[-1].devices, ups[-1], f"{number(ups[-1])}×", names[place]))
        ticks = [2**k for k in range(0, int(math.log2(most)) + 1, 2)]
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.minorticks_off()
        axes.set(xlabel="devices (dashed: ideal)", ylabel=clean(y))
        axes.grid(axis="y")
        name_ends(axes, ends, pitch, looks)
    return figure, " ".join([f"{clean(title)}.", *(_told(name, of) for name, of in curves.items()), note]).strip()


def _told(name, of):
    """A curve in words: its end, and where its regime changes."""
    up = of[-1].rate / of[0].rate
    changes = [f"{b.regime} from {b.devices:,} devices" for a, b in zip(of[1:], of[2:], strict=False)
               if a.regime != b.regime]  # fmt: skip
    first = f"{of[1].regime} on {of[1].devices:,}" if len(of) > 1 else of[0].regime
    return (
        f"{clean(name)}: {number(up)}× on {of[-1].devices:,} devices, efficiency {percent(of[-1].efficiency)}; "
        f"{', '.join([first, *changes])}."
    )


def parts(steps, title="Where a step goes") -> tuple:
    """Stacked bars of costmodel.Step, {label: step}: computing, what is taken from it, and the two kinds of waiting."""
    if not steps:
        raise ValueError("no step to draw: give {label: costmodel.Step}")
    with style.look():
        figure = style.canvas(1)
        high = ROW * len(steps)
        write_foot(figure, 0.95 + high + 0.5, [])
        write_title(figure, title)
        left = row_names(figure, [fitted(figure, label, 3, 2, size=10) for label in steps], 0.95, ROW)
        key(figure, left, 0.5, [(name, *look) for name, look in PARTS.items()])
        axes = style.panel(figure, left, 0.95, style.WIDTH - left - 2.1, high)
        most = max(step.seconds for step in steps.values())
        axes.set(xlim=(0, 1.05e3 * most), ylim=(len(steps) - 0.5, -0.5), yticks=[], xlabel="ms a step")
        for y, step in enumerate(steps.values()):
            begin = 0.0
            spent = (step.compute, step.taken, step.exposed, step.straggling)
            for took, (colour, hatch) in zip(spent, PARTS.values(), strict=True):
                axes.barh(y - 0.08, 1e3 * took, 0.56, begin, color=colour, hatch=hatch, edgecolor=style.INK,
                          linewidth=0.6)  # fmt: skip
                begin += 1e3 * took
            beside(axes, y - 0.08, f"{number(1e3 * step.seconds)} ms, {step.regime}")
    told = [
        f"{clean(name)}: {number(1e3 * step.seconds)} ms, of it computing {number(1e3 * step.compute)} ms and waiting "
        f"for the network {number(1e3 * step.exposed)} ms, {step.regime}" for name, step in steps.items()
    ]  # fmt: skip
    return figure, f"{clean(title)}. {'; '.join(told)}."


def residuals(tables, title="The model against published tables") -> tuple:
    """What is left over, model / published - 1, a dot a row; rows that the model was made from are hollow.

    Args:
        tables: {label: rows of published.against}.

    Raises:
        ValueError: there is no row.
    """
    rows = [(f"{label}: {row['name']}", row) for label, of in tables.items() for row in of]
    if not rows:
        raise ValueError("no table to draw: give {label: rows of published.against}")
    most = max(0.1, *(abs(row["residual"]) for _, row in rows))
    with style.look():
        figure = style.canvas(1)
        high = 0.3 * len(rows)
        write_foot(figure, 0.6 + high + 0.5, ["Hollow: the model was made from this row, so it must be 0."])
        write_title(figure, title)
        left = row_names(figure, [fitted(figure, label, 3.6, 1, size=9) for label, _ in rows], 0.6, 0.3)
        axes = style.panel(figure, left + 0.1, 0.6, style.WIDTH - left - 2.6, high)
        axes.set(xlim=(-110 * most, 110 * most), ylim=(len(rows) - 0.5, -0.5), yticks=[], xlabel="%: model too high →")
        axes.axvline(0, color=style.INK, linewidth=1)
        axes.grid(axis="x")
        for y, (_, row) in enumerate(rows):
            axes.plot(100 * row["residual"], y - 0.08, "o", markersize=8, color=style.BLUE, clip_on=False,
                      fillstyle="none" if row["given"] else "full")  # fmt: skip
            said = f"{number(row['published'])} published, {number(row['model'])} model"
            beside(axes, y - 0.08, said, size=9)
    told = [
        f"{clean(label)}: published {number(row['published'])}, model {number(row['model'])}, "
        + ("given" if row["given"] else f"residual {row['residual']:+.1%}") for label, row in rows
    ]  # fmt: skip
    return figure, f"{clean(title)}. {'; '.join(told)}."


def _bytes(size):
    for unit, limit in (("MB", 2**20), ("kB", 2**10)):
        if size >= limit:
            return f"{size / limit:.3g} {unit}"
    return f"{size:g} B"

"""Figures of the cost model: predicted against measured, scaling to many devices, and what is left over.

The functions return (figure, alt), the text computed from the numbers that are drawn.
"""

import itertools
import math

from .. import costmodel, measure
from ..launcher.language import listed, local, marked
from ..plots import style
from ..plots.layout import line_names, line_style, name_ends, name_rows, rows, sheet, whisker
from ..records.words import clean, number, percent

REGIMES = {costmodel.COMPUTE: style.GREEN, costmodel.BANDWIDTH: style.ORANGE, costmodel.LATENCY: style.PURPLE}
MARKS = {costmodel.COMPUTE: "o", costmodel.BANDWIDTH: "s", costmodel.LATENCY: "D"}
PARTS = {  # of a step: colour and hatch
    marked("computing"): (style.SKY, ""),
    marked("taken from computing"): (style.YELLOW, ".."),
    marked("waiting for the network"): (style.ORANGE, "//"),
    marked("waiting for the slowest"): (style.GREY, "xx"),
}


def predicted(steps, title="Predicted and measured steps", readers=None) -> tuple:
    """Measured steps as bars, the model's prediction as a diamond, its error beside it.

    Args:
        steps: {label: {"predicted": s, "measured": s}}, and maybe "steps": [s, …], of which a whisker shows the 95%
            interval of the median. readers: {label: s}, the reader's own predictions, a circle.

    Raises:
        ValueError: there is no row.
    """
    if not steps:
        raise ValueError("no step to draw: give {label: {'predicted': s, 'measured': s}}")
    readers = {name: value for name, value in (readers or {}).items() if name in steps and value is not None}
    errors = {name: costmodel.error(of["predicted"], of["measured"]) for name, of in steps.items()}
    worst = max(errors, key=lambda name: abs(errors[name]))
    summary = f"Largest error: {errors[worst]:+.1%} ({clean(worst)})."
    key = [(marked("measured, median"), style.SKY, ""), (marked("the model"), style.INK, None, "D")]
    marks, words, named = [], [], []
    for y, (name, of) in enumerate(steps.items()):
        ours, theirs = (number(1e3 * of[which]) for which in ("measured", "predicted"))
        named.append((name, [(1e3 * of["measured"], (style.SKY, ""))], f"{ours} ms, error {errors[name]:+.1%}"))
        marks.append((y, 1e3 * of["predicted"], "D", style.INK))
        told = [f"measured {ours} ms", f"predicted {theirs} ms", f"error {errors[name]:+.1%}"]
        if name in readers:
            marks.append((y, 1e3 * readers[name], "o", style.RED))
            told.append(f"the reader predicted {number(1e3 * readers[name])} ms")
        words.append(local("{text}: {more}", text=clean(name), more=listed(told)))
    key += [(marked("the reader"), style.RED, None, "o")] * bool(readers)
    spreads = {y: measure.median_interval(of["steps"]) for y, of in enumerate(steps.values()) if of.get("steps")}
    notes = [marked("Whisker: the 95% interval of the measured median."), summary] if spreads else [summary]
    most = max((1e3 * high for _, high in spreads.values()), default=0)
    figure = rows(title, "ms a step", named, key=key, notes=notes, marks=marks, most=most)
    for y, (low, high) in spreads.items():
        whisker(figure.axes[0], y, named[y][1][0][0], 1e3 * low, 1e3 * high)
    return figure, " ".join([*_told(title, words), summary])


def sweep(seconds, link, devices, title="All-reduce by size", intervals=None) -> tuple:
    """Measured all-reduces and the fitted line of a ring, on logarithmic axes, with the largest residual.

    Args:
        seconds: {bytes: s}. intervals: {bytes: (low, high)}, of which a whisker shows the 95% interval of the median.
    """
    if not seconds:
        raise ValueError("no all-reduce to draw: give {bytes: seconds}")
    line = {size: sum(costmodel.all_reduce(size, devices, link)) for size in seconds}
    off = {size: line[size] / s - 1 for size, s in seconds.items()}
    worst = max(off, key=lambda size: abs(off[size]))
    summary = (
        f"Latency {number(1e6 * link.latency)} µs a message, bandwidth {number(link.bandwidth / 1e6)} MB/s; "
        f"largest residual {off[worst]:+.0%} at {_bytes(worst)}."
    )
    notes = ["Whisker: the 95% interval of the measured median.", summary] if intervals else [summary]
    with sheet(title, 2.6, notes=notes) as (figure, [axes]):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.plot(list(line), [1e3 * s for s in line.values()], color=style.INK, linewidth=1.6)
        axes.plot(list(seconds), [1e3 * s for s in seconds.values()], "o", color=style.BLUE, markersize=7)
        for size, (low, high) in (intervals or {}).items():
            middle = seconds[size]
            spread = [[1e3 * (middle - low)], [1e3 * (high - middle)]]
            axes.errorbar(size, 1e3 * middle, yerr=spread, color=style.INK, capsize=3.5, linewidth=1.4)
        axes.set_xticks(list(seconds), [_bytes(size) for size in seconds])
        ticks = _ticks([1e3 * s for s in (*seconds.values(), *itertools.chain(*(intervals or {}).values()))])
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set(ylabel="ms", xlabel=marked("size of the tensor (points: measured; line: fitted)"))
        axes.grid(axis="y")
    first, last = min(seconds), max(seconds)
    least, most = (f"{number(1e3 * seconds[end])} ms" for end in (first, last))
    ends = f"{clean(title)} on {devices} devices: from {least} for {_bytes(first)} to {most} for {_bytes(last)}."
    return figure, " ".join([ends, summary])


def _ticks(values):
    """Ticks of a logarithmic axis, from below the least of `values` to above the largest."""
    low, high = min(values), max(values)
    powers = range(math.floor(math.log10(low)) - 1, math.floor(math.log10(high)) + 3)
    ticks = [first * 10.0**k for k in powers for first in ((1, 2, 5) if high < 1000 * low else (1,))]
    below, above = max(t for t in ticks if t <= low), min(t for t in ticks if t >= high)
    return [tick for tick in ticks if below <= tick <= above]


def scaling(curves, title="From 1 to 1,024 devices", note="") -> tuple:
    """Efficiency over devices, a line a case, its regime by colour and mark at each point.

    Args:
        curves: {label: [costmodel.Step, …]}, each from one device on.

    Raises:
        ValueError: there is no curve, or one does not begin with one device.
    """
    if not curves or any(not of or of[0].devices != 1 for of in curves.values()):
        raise ValueError("a scaling curve begins with one device: give {label: [costmodel.Step, …]}")
    names, high = line_names(curves, 1.85, least=2.4)
    looks = [{name: line_style(place)[name] for name in ("color", "linestyle")} for place in range(len(curves))]
    key = [(name, colour, None, MARKS[name]) for name, colour in REGIMES.items()]
    most = max(step.devices for of in curves.values() for step in of)
    ticks = [2**k for k in range(0, int(math.log2(most)) + 1, 2)]
    with sheet(title, high, key=key, notes=[note]) as (figure, [axes]):
        axes.set_xscale("log", base=2)
        for of, look in zip(curves.values(), looks, strict=True):
            axes.plot([step.devices for step in of], [100 * step.efficiency for step in of], **look, linewidth=1.6)
            for step in of:
                axes.plot(
                    step.devices,
                    100 * step.efficiency,
                    MARKS[step.regime],
                    color=REGIMES[step.regime],
                    markersize=6,
                    markeredgewidth=0.6,
                    clip_on=False,
                )
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.minorticks_off()
        axes.set(xlabel=marked("devices"), ylabel=marked("efficiency, %"), ylim=(0, 100))
        axes.grid(axis="y")
        ends = [(of[-1].devices, 100 * of[-1].efficiency, percent(of[-1].efficiency)) for of in curves.values()]
        name_ends(axes, ends, names, high, looks)
    return figure, " ".join([f"{clean(title)}.", *(_words(name, of) for name, of in curves.items()), note]).strip()


def _words(name, of):
    """A curve in words: its end, and where its regime changes."""
    changes = [
        f"{b.regime} from {b.devices:,} devices" for a, b in zip(of[1:], of[2:], strict=False) if a.regime != b.regime
    ]
    first = of[0].regime
    if len(of) > 1:
        first = local("{regime} on {devices}", regime=of[1].regime, devices=f"{of[1].devices:,}")
    end = f"efficiency {percent(of[-1].efficiency)} on {of[-1].devices:,} devices"
    return listed([end, listed([first, *changes])], "; ", clean(name))


def _told(title, words):
    """The sentences of an alt text."""
    return f"{clean(title)}.", local("{text}.", text=listed(words, "; "))


def parts(steps, title="Where a step goes", measured=None) -> tuple:
    """Stacked bars of costmodel.Step, {label: step}: computing, what is taken from it, and the two kinds of waiting.

    Args:
        measured: {label: seconds of the step as it was measured}, a diamond.
    """
    if not steps:
        raise ValueError("no step to draw: give {label: costmodel.Step}")
    named = []
    for name, step in steps.items():
        spent = (1e3 * seconds for seconds in (step.compute, step.taken, step.exposed, step.straggling))
        bars = list(zip(spent, PARTS.values(), strict=True))
        named.append((name, bars, style.said(f"{number(1e3 * step.seconds)} ms, {step.regime}")))
    marks = [(y, 1e3 * measured[name], "D", style.INK) for y, name in enumerate(steps)] if measured else []
    key = [(name, *look) for name, look in PARTS.items()]
    key += [(marked("measured"), style.INK, None, "D")] * bool(measured)
    figure = rows(title, "ms a step", named, key=key, marks=marks)
    words = []
    for name, step in steps.items():
        whole, computing, waiting = (number(1e3 * each) for each in (step.seconds, step.compute, step.exposed))
        told = [f"of it computing {computing} ms and waiting for the network {waiting} ms", step.regime]
        told += [f"measured {number(1e3 * measured[name])} ms"] if measured else []
        words.append(local("{text}: {more}", text=clean(name), more=listed([f"{whole} ms", *told])))
    return figure, " ".join(_told(title, words))


def residuals(tables, title="The model against published tables") -> tuple:
    """What is left over of the speed, model / published - 1, a dot a row; rows that the model was made from are hollow.

    Args:
        tables: {label: rows of published.against}.

    Raises:
        ValueError: there is no row.
    """
    found = [(f"{label}: {row['name']}", row) for label, of in tables.items() for row in of]
    if not found:
        raise ValueError("no table to draw: give {label: rows of published.against}")
    most = max(0.1, *(abs(row["residual"]) for _, row in found))
    notes = [marked("Hollow: the model was made from this row, so it must be 0.")]
    with sheet(title, 0.3 * len(found), notes=notes) as (figure, [axes]):
        name_rows(axes, [label for label, _ in found], 3.6, 1, 9)
        axes.set(xlim=(-110 * most, 110 * most), xlabel=marked("% of speed: model too fast →"))
        axes.axvline(0, color=style.INK, linewidth=1)
        axes.grid(axis="x")
        for y, (_, row) in enumerate(found):
            axes.plot(
                100 * row["residual"],
                y,
                "o",
                markersize=8,
                color=style.BLUE,
                clip_on=False,
                fillstyle="none" if row["given"] else "full",
            )
            style.beside(axes, y, f"{number(row['published'])} published, {number(row['model'])} model", size=9)
    told = (marked("given") if row["given"] else f"residual {row['residual']:+.1%}" for _, row in found)
    words = [
        local("{text}: {more}", text=clean(label), more=more) for (label, _), more in zip(found, told, strict=True)
    ]
    return figure, " ".join(_told(title, words))


def _bytes(size):
    for unit, limit in (("MB", 2**20), ("kB", 2**10)):
        if size >= limit:
            return f"{size / limit:.3g} {unit}"
    return f"{size:g} B"

"""Figures of the cost model: predicted against measured, scaling to many devices, and what is left over.

The functions return (figure, alt), the text computed from the numbers that are drawn.
"""

import math
from itertools import pairwise

from .. import measure
from ..language import N_, _
from ..plots import style
from ..plots.layout import line_names, line_style, name_ends, name_rows, rows, sheet, whisker
from ..records.words import clean, number, percent
from .model import BANDWIDTH, COMPUTE, LATENCY, all_reduce

REGIMES = {COMPUTE: (style.GREEN, "o"), BANDWIDTH: (style.ORANGE, "s"), LATENCY: (style.PURPLE, "D")}
PARTS = {  # of a step: colour and hatch
    N_("computing"): (style.SKY, ""),
    N_("taken from computing"): (style.YELLOW, ".."),
    N_("waiting for the network"): (style.ORANGE, "//"),
    N_("waiting for the slowest"): (style.GREY, "xx"),
}


def _alt(title, words):
    """An alt text: the title, then a sentence for each of {name: [what there is to say of it]}."""
    told = [_("{text}: {more}").format(text=clean(name), more=_(", ").join(of)) for name, of in words.items()]
    return f"{clean(title)}. " + _("{text}.").format(text=_("; ").join(told))


def predicted(steps, title=None, readers=None) -> tuple:
    """Measured steps as bars, the model's prediction as a diamond, its error beside it.

    Args:
        steps: {label: {"predicted": s, "measured": s}}, and maybe "steps": [s, …], of which a whisker shows the 95%
            interval of the median. readers: {label: s}, the reader's own predictions, a circle.
    """
    errors = {name: of["predicted"] / of["measured"] - 1 for name, of in steps.items()}
    worst = max(errors, key=lambda name: abs(errors[name]))
    summary = _("Largest error: {errors} ({worst}).").format(errors=f"{errors[worst]:+.1%}", worst=clean(worst))
    named, marks, words, spreads = [], [], {}, {}
    for y, (name, of) in enumerate(steps.items()):
        ours, theirs, error = number(1e3 * of["measured"]), number(1e3 * of["predicted"]), f"{errors[name]:+.1%}"
        beside = _("{ours} ms, error {errors}").format(ours=ours, errors=error)
        named.append((name, [(1e3 * of["measured"], (style.SKY, ""))], beside))
        marks.append((y, 1e3 * of["predicted"], "D", style.INK))
        words[name] = [
            _("measured {ours} ms").format(ours=ours),
            _("predicted {theirs} ms").format(theirs=theirs),
            _("error {errors}").format(errors=error),
        ]
        if (guess := (readers or {}).get(name)) is not None:
            marks.append((y, 1e3 * guess, "o", style.RED))
            words[name].append(_("the reader predicted {readers} ms").format(readers=number(1e3 * guess)))
        if of.get("steps"):
            spreads[y] = [1e3 * end for end in measure.median_interval(of["steps"])]
    key = [(_("measured, median"), style.SKY, ""), (_("the model"), style.INK, None, "D")]
    key += [(_("the reader"), style.RED, None, "o")] * (len(marks) > len(named))
    notes = [_("Whisker: the 95% interval of the measured median.")] * bool(spreads) + [summary]
    title = title or _("Predicted and measured steps")
    most = max((high for low, high in spreads.values()), default=0)
    figure = rows(title, _("ms a step"), named, key=key, notes=notes, marks=marks, most=most)
    for y, (low, high) in spreads.items():
        whisker(figure.axes[0], y, named[y][1][0][0], low, high)
    return figure, f"{_alt(title, words)} {summary}"


def sweep(seconds, link, devices, title=None, intervals=None) -> tuple:
    """Measured all-reduces and the fitted line of a ring, on logarithmic axes, with the largest residual.

    Args:
        seconds: {bytes: s}. intervals: {bytes: (low, high)}, of which a whisker shows the 95% interval of the median.
    """
    from matplotlib.ticker import LogLocator

    line = {size: sum(all_reduce(size, devices, link)) for size in seconds}
    worst = max(line, key=lambda size: abs(line[size] / seconds[size] - 1))
    summary = _("Latency {latency} µs a message, bandwidth {bandwidth} MB/s; largest residual {off} at {worst}.")
    numbers = {"latency": number(1e6 * link.latency), "bandwidth": number(link.bandwidth / 1e6)}
    summary = summary.format(**numbers, off=f"{line[worst] / seconds[worst] - 1:+.0%}", worst=_bytes(worst))
    title, intervals = title or _("All-reduce by size"), intervals or {}
    spread = [[1e3 * abs(intervals.get(size, (s, s))[end] - s) for size, s in seconds.items()] for end in (0, 1)]
    notes = [_("Whisker: the 95% interval of the measured median.")] * bool(intervals) + [summary]
    with sheet(title, 2.6, notes=notes) as (figure, [axes]):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.plot(list(line), [1e3 * s for s in line.values()], color=style.INK, linewidth=1.6)
        look = {"color": style.BLUE, "markersize": 7, "ecolor": style.INK, "capsize": 3.5}
        axes.errorbar(list(seconds), [1e3 * s for s in seconds.values()], spread, fmt="o", **look)
        axes.set_xticks(list(seconds), [_bytes(size) for size in seconds])
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, place: f"{value:g}")
        axes.minorticks_off()
        axes.set(ylabel="ms", xlabel=_("size of the tensor (points: measured; line: fitted)"))
        axes.grid(axis="y")
    ends = {"first": _bytes(min(seconds)), "last": _bytes(max(seconds))}
    ends |= {"least": f"{number(1e3 * seconds[min(seconds)])} ms", "most": f"{number(1e3 * seconds[max(seconds)])} ms"}
    alt = _("{title} on {devices} devices: from {least} for {first} to {most} for {last}.")
    return figure, f"{alt.format(title=clean(title), devices=devices, **ends)} {summary}"


def _bytes(size):
    for unit, limit in (("MB", 2**20), ("kB", 2**10)):
        if size >= limit:
            return f"{size / limit:.3g} {unit}"
    return f"{size:g} B"


def scaling(curves, title=None, note="") -> tuple:
    """Efficiency over devices, a line a case, its regime by colour and mark at each point.

    Args:
        curves: {label: [costmodel.Step, …]}, each from one device on.
    """
    title = title or _("From 1 to 1,024 devices")
    names, high = line_names(curves, 1.85, least=2.4)
    looks = [{name: line_style(place)[name] for name in ("color", "linestyle")} for place in range(len(curves))]
    key = [(_(name), colour, None, mark) for name, (colour, mark) in REGIMES.items()]
    ticks = [2**k for k in range(0, int(math.log2(max(of[-1].devices for of in curves.values()))) + 1, 2)]
    ends, words = [], {}
    with sheet(title, high, key=key, notes=[note]) as (figure, [axes]):
        axes.set_xscale("log", base=2)
        for (name, of), look in zip(curves.items(), looks, strict=True):
            axes.plot([step.devices for step in of], [100 * step.efficiency for step in of], **look, linewidth=1.6)
            for step in of:
                colour, mark = REGIMES[step.regime]
                at = step.devices, 100 * step.efficiency
                axes.plot(*at, mark, color=colour, markersize=6, markeredgewidth=0.6, clip_on=False)
            end = percent(of[-1].efficiency)
            ends.append((*at, end))
            words[name] = [
                _("efficiency {efficiency} on {devices} devices").format(efficiency=end, devices=f"{at[0]:,}")
            ]
            for before, step in pairwise(of):  # on one device nothing is sent
                if before.devices == 1 or before.regime != step.regime:
                    change = _("{regime} on {devices}") if before.devices == 1 else _("{regime} from {devices} devices")
                    words[name].append(change.format(regime=_(step.regime), devices=f"{step.devices:,}"))
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.minorticks_off()
        axes.set(xlabel=_("devices"), ylabel=_("efficiency, %"), ylim=(0, 100))
        axes.grid(axis="y")
        name_ends(axes, ends, names, high, looks)
    return figure, f"{_alt(title, words)} {note}".strip()


def parts(steps, title=None, measured=None) -> tuple:
    """Stacked bars of costmodel.Step, {label: step}: computing, what is taken from it, and the two kinds of waiting.

    Args:
        measured: {label: seconds of the step as it was measured}, a diamond.
    """
    title, measured = title or _("Where a step goes"), measured or {}
    named, marks, words = [], [], {}
    for y, (name, step) in enumerate(steps.items()):
        spent = [1e3 * seconds for seconds in (step.compute, step.taken, step.exposed, step.straggling)]
        whole, computing, waiting = number(1e3 * step.seconds), number(spent[0]), number(spent[2])
        about = _("{seconds} ms, {regime}").format(seconds=whole, regime=_(step.regime))
        named.append((name, list(zip(spent, PARTS.values(), strict=True)), about))
        inside = _("of it computing {computing} ms and waiting for the network {waiting} ms")
        words[name] = [f"{whole} ms", inside.format(computing=computing, waiting=waiting), _(step.regime)]
        if name in measured:
            marks.append((y, 1e3 * measured[name], "D", style.INK))
            words[name].append(_("measured {measured} ms").format(measured=number(1e3 * measured[name])))
    key = [(_(name), *look) for name, look in PARTS.items()]
    key += [(_("measured"), style.INK, None, "D")] * bool(marks)
    return rows(title, _("ms a step"), named, key=key, marks=marks), _alt(title, words)


def residuals(tables, title=None) -> tuple:
    """What is left over of the speed, model / published - 1, a dot a row; rows that the model was made from are hollow.

    Args:
        tables: {label: rows of published.against}.
    """
    title = title or _("The model against published tables")
    found = {f"{label}: {row['name']}": row for label, of in tables.items() for row in of}
    most = 110 * max(0.1, *(abs(row["residual"]) for row in found.values()))
    notes, words = [_("Hollow: the model was made from this row, so it must be 0.")], {}
    with sheet(title, 0.3 * len(found), notes=notes) as (figure, [axes]):
        name_rows(axes, list(found), 3.6, 1, 9)
        axes.set(xlim=(-most, most), xlabel=_("% of speed: model too fast →"))
        axes.axvline(0, color=style.INK, linewidth=1)
        axes.grid(axis="x")
        for y, (name, row) in enumerate(found.items()):
            look = {"color": style.BLUE, "fillstyle": "none" if row["given"] else "full"}
            axes.plot(100 * row["residual"], y, "o", markersize=8, clip_on=False, **look)
            numbers = {which: number(row[which]) for which in ("published", "model")}
            style.beside(axes, y, _("{published} published, {model} model").format(**numbers), size=9)
            off = _("residual {residual}").format(residual=f"{row['residual']:+.1%}")
            words[name] = [_("given") if row["given"] else off]
    return figure, _alt(title, words)

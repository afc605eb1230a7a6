"""Figures of the cost model: predicted against measured, scaling to many devices, and what is left over.

The functions return (figure, alt), the text computed from the numbers that are drawn.
"""

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
WHISKER = N_("Whisker: the 95% interval of the measured median.")


def _alt(title, words):
    """An alt text: the title, then a sentence for each of {name: what is written beside it}."""
    told = [_("{text}: {more}").format(text=clean(name), more=text) for name, text in words]
    return f"{clean(title)}. " + _("{text}.").format(text=_("; ").join(told))


@style.readable()
def predicted(steps, title=None, readers=None) -> tuple:
    """Measured steps as bars, the model's prediction as a diamond, its error beside it.

    Args:
        steps: {label: {"predicted": s, "measured": s}}, and maybe "steps": [s, …], of which a whisker shows the 95%
            interval of the median. readers: {label: s}, the reader's own predictions, a circle.
    """
    title, named, marks, spreads = title or _("Predicted and measured steps"), [], [], {}
    errors = {name: of["predicted"] / of["measured"] - 1 for name, of in steps.items()}
    for y, (name, of) in enumerate(steps.items()):
        measured, error = 1e3 * of["measured"], f"{errors[name]:+.1%}"
        beside = _("{ours} ms, error {errors}").format(ours=number(measured), errors=error)
        named.append((name, [(measured, (style.SKY, ""))], beside))
        marks.append((y, 1e3 * of["predicted"], "D", style.INK))
        if name in (readers or {}):
            marks.append((y, 1e3 * readers[name], "o", style.RED))
        if of.get("steps"):
            spreads[y] = measured, *(1e3 * end for end in measure.median_interval(of["steps"]))
    worst = max(errors, key=lambda name: abs(errors[name]))
    summary = _("Largest error: {errors} ({worst}).").format(errors=f"{errors[worst]:+.1%}", worst=clean(worst))
    key = [(_("measured, median"), style.SKY, ""), (_("the model"), style.INK, None, "D")]
    key += [(_("the reader"), style.RED, None, "o")] * (len(marks) > len(named))
    most = max((high for _median, _low, high in spreads.values()), default=0)
    notes = [_(WHISKER)] * bool(spreads) + [summary]
    figure = rows(title, _("ms a step"), named, key=key, notes=notes, marks=marks, most=most)
    for y, interval in spreads.items():
        whisker(figure.axes[0], y, *interval)
    return figure, f"{_alt(title, [(name, text) for name, _bars, text in named])} {summary}"


@style.readable()
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
    with sheet(title, 2.6, notes=[_(WHISKER)] * bool(intervals) + [summary]) as (figure, [axes]):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.plot(list(line), [1e3 * s for s in line.values()], color=style.INK, linewidth=1.6)
        look = {"color": style.BLUE, "markersize": 7, "ecolor": style.INK, "capsize": 3.5}
        axes.errorbar(list(seconds), [1e3 * s for s in seconds.values()], spread, fmt="o", **look)
        axes.set_xticks(list(seconds), [_bytes(size) for size in seconds])
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.set(ylabel="ms", xlabel=_("size of the tensor (points: measured; line: fitted)"))
        axes.grid(axis="y")
    return figure, f"{clean(title)}. {summary}"


def _bytes(size):
    for unit, limit in (("MB", 2**20), ("kB", 2**10), ("B", 1)):
        if size >= limit:
            return f"{size / limit:.3g} {unit}"


@style.readable()
def scaling(curves, title=None, note="") -> tuple:
    """Efficiency over devices, a line a case, its regime by colour and mark at each point.

    Args:
        curves: {label: [costmodel.Step, …]}, each from one device on.
    """
    title, ends, words = title or _("From 1 to 1,024 devices"), [], []
    names, high = line_names(curves, 1.85, least=2.4)
    looks = [{name: line_style(place)[name] for name in ("color", "linestyle")} for place in range(len(curves))]
    key = [(_(name), colour, None, mark) for name, (colour, mark) in REGIMES.items()]
    ticks = [2**k for k in range(0, max(of[-1].devices for of in curves.values()).bit_length(), 2)]
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
            told = [_("efficiency {efficiency} on {devices} devices").format(efficiency=end, devices=f"{at[0]:,}")]
            change = _("{regime} from {devices} devices")
            for before, step in pairwise(of):
                if before.regime != step.regime:
                    told.append(change.format(regime=_(step.regime), devices=f"{step.devices:,}"))
            words.append((name, _(", ").join(told)))
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.minorticks_off()
        axes.set(xlabel=_("devices"), ylabel=_("efficiency, %"), ylim=(0, 100))
        axes.grid(axis="y")
        name_ends(axes, ends, names, high, looks)
    return figure, f"{_alt(title, words)} {note}".strip()


@style.readable()
def parts(steps, title=None, measured=None) -> tuple:
    """Stacked bars of costmodel.Step, {label: step}: computing, what is taken from it, and the two kinds of waiting.

    Args:
        measured: {label: seconds of the step as it was measured}, a diamond.
    """
    title, named = title or _("Where a step goes"), []
    for name, step in steps.items():
        spent = [1e3 * seconds for seconds in (step.compute, step.taken, step.exposed, step.straggling)]
        about = _("{seconds} ms, {regime}").format(seconds=number(1e3 * step.seconds), regime=_(step.regime))
        named.append((name, list(zip(spent, PARTS.values(), strict=True)), about))
    marks = [(list(steps).index(name), 1e3 * s, "D", style.INK) for name, s in (measured or {}).items()]
    key = [(_(name), *look) for name, look in PARTS.items()]
    key += [(_("measured"), style.INK, None, "D")] * bool(marks)
    alt = _alt(title, [(name, text) for name, _bars, text in named])
    return rows(title, _("ms a step"), named, key=key, marks=marks), alt


@style.readable()
def residuals(tables, title=None) -> tuple:
    """What is left over of the speed, model / published - 1, a dot a row; rows that the model was made from are hollow.

    Args:
        tables: {label: rows of published.against}.
    """
    title, words = title or _("The model against published tables"), []
    found = {f"{label}: {row['name']}": row for label, of in tables.items() for row in of}
    most = 110 * max(0.1, *(abs(row["residual"]) for row in found.values()))
    notes = [_("Hollow: the model was made from this row, so it must be 0.")]
    with sheet(title, 0.3 * len(found), notes=notes) as (figure, [axes]):
        name_rows(axes, list(found), 3.6, 1, 9)
        axes.set(xlim=(-most, most), xlabel=_("% of speed: model too fast →"))
        axes.axvline(0, color=style.INK, linewidth=1)
        axes.grid(axis="x")
        for y, (name, row) in enumerate(found.items()):
            look = {"color": style.BLUE, "fillstyle": "none" if row["given"] else "full"}
            axes.plot(100 * row["residual"], y, "o", markersize=8, clip_on=False, **look)
            numbers = {which: number(row[which]) for which in ("published", "model")}
            words.append((name, _("{published} published, {model} model").format(**numbers)))
            style.beside(axes, y, words[-1][1], size=9)
    return figure, _alt(title, words)

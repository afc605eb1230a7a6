"""Figures of the cost model: predicted against measured, and scaling to many devices.

The functions return (figure, alt), the text computed from the numbers that are drawn.
"""

from itertools import pairwise
from statistics import median

from .. import measure
from ..language import N_, _
from ..plots import style
from ..plots.layout import line_names, line_style, name_ends, rows, sheet, whisker
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
def sweep(fitted, title=None) -> tuple:
    """The all-reduces of a Fit and its line of a ring, on logarithmic axes, with the largest residual."""
    from matplotlib.ticker import LogLocator

    sizes, link, off = list(fitted.sweep), fitted.link, fitted.residuals
    seconds = [median(of) for of in fitted.sweep.values()]
    worst = max(off, key=lambda size: abs(off[size]))
    summary = _("Latency {latency} µs a message, bandwidth {bandwidth} MB/s; largest residual {off} at {worst}.")
    numbers = {"latency": number(1e6 * link.latency), "bandwidth": number(link.bandwidth / 1e6)}
    summary = summary.format(**numbers, off=f"{off[worst]:+.0%}", worst=_bytes(worst))
    title = title or _("All-reduce by size")
    ends = zip(*(measure.median_interval(of) for of in fitted.sweep.values()), strict=True)
    spread = [[1e3 * abs(end - s) for end, s in zip(of, seconds, strict=True)] for of in ends]
    with sheet(title, 2.6, notes=[_(WHISKER), summary]) as (figure, [axes]):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        line = [1e3 * sum(all_reduce(size, fitted.devices, link)) for size in sizes]
        axes.plot(sizes, line, color=style.INK, linewidth=1.6)
        look = {"color": style.BLUE, "markersize": 7, "ecolor": style.INK, "capsize": 3.5}
        axes.errorbar(sizes, [1e3 * s for s in seconds], spread, fmt="o", **look)
        axes.set_xticks(sizes, [_bytes(size) for size in sizes])
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.set(ylabel="ms", xlabel=_("size of the tensor (points: measured; line: fitted)"))
        axes.grid(axis="y")
    return figure, f"{clean(title)}. {summary}"


def _bytes(size):
    return f"{size / 2**20:.3g} MB" if size >= 2**20 else f"{size / 2**10:.3g} kB"


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

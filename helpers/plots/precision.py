"""From which batch size on does a precision pay? Its speed over fp32, measured at each batch."""

from ..launcher.language import listed, local, marked
from . import style
from .layout import line_names, line_style, name_ends, sheet
from .style import clean, times

NEAR = 0.09  # of the axis: closer ticks get no text


def speed_over_batch(series, title) -> tuple:
    """Speed over fp32 at the same batch, a line a label; the whiskers are 95% intervals of the medians.

    Args:
        series: {label: [{"batch": int, "ratio": float, "low": float, "high": float}, …]}, ratios of speeds.
        title: what was measured.

    Raises:
        ValueError: there is no point to draw.
    """
    series = {clean(label): sorted(points, key=lambda p: p["batch"]) for label, points in series.items() if points}
    if not series:
        raise ValueError("no label has a point to draw; give each a list of dicts with batch, ratio, low and high")
    names, high = line_names(series)
    notes = [marked("Whisker: 95% interval of the median. The bold line at 1× is fp32 at the same batch.")]
    with sheet(title, high, notes=notes) as (figure, [axes]):
        axes.axhline(1, color=style.INK, linewidth=2.2)
        for place, points in enumerate(series.values()):
            below = [max(0, p["ratio"] - p["low"]) for p in points]
            above = [max(0, p["high"] - p["ratio"]) for p in points]
            look = {**line_style(place), "markevery": None, "elinewidth": 1.3, "capsize": 3.5}
            axes.errorbar([p["batch"] for p in points], [p["ratio"] for p in points], yerr=[below, above], **look)
        _scale(axes, [point for points in series.values() for point in points])
        ends = [(points[-1]["batch"], points[-1]["ratio"], times(points[-1]["ratio"])) for points in series.values()]
        name_ends(axes, ends, names, high)
    words = listed([marked("speed over fp32 at the same local batch")], about=clean(title))
    return figure, " ".join([words, *(_words(label, points) for label, points in series.items())])


def _scale(axes, points):
    batches = sorted({point["batch"] for point in points})
    axes.set_xscale("log", base=2)
    axes.set(
        xlabel=marked("local batch"),
        ylabel=marked("speed over fp32"),
        xlim=(batches[0] / 1.25, batches[-1] * 1.25),
        ylim=(0, 1.1 * max(1, *(point["high"] for point in points))),
    )
    transform, texts, last = axes.transData + axes.transAxes.inverted(), [], -1
    for batch in batches:
        place = transform.transform((batch, 1))[0]
        texts.append(f"{batch:,}" if place - last >= NEAR else "")
        last = place if texts[-1] else last
    axes.set_xticks(batches, texts)
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}×" if value else "0")
    axes.grid(axis="y")


def _words(label, points):
    best = max(points, key=lambda p: p["ratio"])
    slower = [place for place, p in enumerate(points) if p["low"] <= 1]
    pays = points[slower[-1] + 1 :] if slower else points
    shown = sorted({p["batch"]: p for p in (points[0], best, points[-1])}.items())
    words = listed([local("{speed} at {batch}", speed=times(p["ratio"]), batch=batch) for batch, p in shown])
    if not pays:
        return listed([words, marked("not clearly faster than fp32 at the largest batch")], "; ", label)
    return listed([words, f"clearly faster than fp32 from {pays[0]['batch']} on"], "; ", label)

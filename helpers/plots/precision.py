"""From which batch size on does a precision pay? Its speed over fp32, measured at each batch."""

from . import style
from .drawing import AXES, NAMES, fitted, heights, line_style, name_ends, write_foot, write_title
from .style import clean, times

NEAR = 0.42  # inches between ticks; closer ones get no text


def speed_over_batch(series, title, unit="local batch") -> tuple:
    """Speed over fp32 at the same batch, a line a label; the whiskers are the middle half.

    Args:
        series: {label: [{"batch": int, "ratio": float, "q1": float, "q3": float}, …]}, ratios of speeds.
        title: what was measured.
        unit: the name of the x axis.

    Raises:
        ValueError: there is no point to draw.
    """
    lines = {clean(label): sorted(points, key=lambda p: p["batch"]) for label, points in series.items() if points}
    if not lines:
        raise ValueError(
            f"none of the {len(series)} label(s) has a point to draw; give each a list of dicts with batch, ratio, "
            "q1 and q3"
        )
    with style.look():
        figure = style.canvas(1)
        names = [fitted(figure, label, NAMES, 2) for label in lines]
        pitch, high = heights(names)
        foot = "Whisker: middle half of the measurements. The bold line at 1× is fp32 at the same batch."
        write_foot(figure, 0.52 + high + 0.5, [foot])
        write_title(figure, title)
        axes = style.panel(figure, 0.75, 0.52, AXES, high)
        axes.axhline(1, color=style.INK, linewidth=2.2)
        for place, points in enumerate(lines.values()):
            _line(axes, place, points)
        _scale(axes, [point for points in lines.values() for point in points], fitted(figure, unit, AXES, 1))
        last = [points[-1] for points in lines.values()]
        ends = [(p["batch"], p["ratio"], times(p["ratio"]), name) for p, name in zip(last, names, strict=True)]
        name_ends(axes, ends, pitch)
    said = f"{clean(title)}: speed over fp32 at the same {clean(unit)}."
    return figure, " ".join([said, *(_told(label, points) for label, points in lines.items())])


def _line(axes, place, points):
    batches, ratios = [p["batch"] for p in points], [p["ratio"] for p in points]
    below = [max(0, p["ratio"] - p["q1"]) for p in points]
    above = [max(0, p["q3"] - p["ratio"]) for p in points]
    axes.errorbar(batches, ratios, yerr=[below, above], **line_style(place), elinewidth=1.3, capsize=3.5)


def _scale(axes, points, unit):
    from matplotlib.ticker import NullLocator

    batches = sorted({point["batch"] for point in points})
    axes.set_xscale("log", base=2)
    axes.set(
        xlabel=unit, ylabel="speed over fp32", xlim=(batches[0] / 1.25, batches[-1] * 1.25),
        ylim=(0, 1.1 * max(1, *(point["q3"] for point in points))),
    )  # fmt: skip
    places = dict(zip(batches, axes.transData.transform([(b, 1) for b in batches])[:, 0], strict=True))
    said, last = [], -NEAR * axes.figure.dpi
    for batch, place in places.items():
        near = place - last < NEAR * axes.figure.dpi
        said.append("" if near else f"{batch:,}")
        last = last if near else place
    axes.set_xticks(batches, said)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}×" if value else "0")
    axes.grid(axis="y")


def _told(label, points):
    each = ", ".join(f"{times(p['ratio'])} at {p['batch']}" for p in points)
    best = max(points, key=lambda p: p["ratio"])
    slower = [place for place, p in enumerate(points) if p["q1"] <= 1]
    pays = points[slower[-1] + 1 :] if slower else points
    told = f"{label}: {each}; "
    if len(points) > 1:
        low, high = times(best["q1"]), times(best["q3"])
        told += f"the largest is {times(best['ratio'])} at {best['batch']} (middle half {low} to {high}), and "
    if not pays:
        return told + "at the largest batch it is not clearly faster than fp32."
    return told + f"it is clearly faster than fp32 from {pays[0]['batch']} on."

"""What all figures share: a sheet with title, key and notes, rows of bars, and lines with names at their ends.

Constrained layout places the panels: names, ticks and numbers beside them take the room they need, and each
panel is as high as was asked for.
"""

import math
import re
import textwrap
from contextlib import contextmanager
from functools import lru_cache

from . import style
from .style import clean

LINES = (  # of several runs: colour, dashes, width; of two equal runs the first shows below the second
    (style.BLUE, "solid", 3),
    (style.ORANGE, (0, (5, 2)), 2.6),
    (style.INK, (0, (1, 1.5)), 1.8),
    (style.GREEN, (0, (6, 2, 1, 2)), 1.8),
    (style.RED, "solid", 1.2),
    (style.PURPLE, (0, (8, 3)), 1.6),
    (style.SKY, (0, (3, 1)), 1.6),
    (style.GREY, "solid", 1.6),
)
MARKS = "osD^v<>PXh*p"  # at the ends of lines, so that no two of 24 lines are alike
NAMES = 2.15  # inches of the names beside the ends of lines
DASHED = (0, (4, 3))
# Where a line may end: at a space, and after a Chinese character, unless a mark follows that no line begins with.
BETWEEN = re.compile("([\t\n\v\f\r ]+)|(?<=[\u4e00-\u9fff，。；：、）])(?=[\u4e00-\u9fff（])")


@lru_cache
def _ruler():
    from matplotlib.backends.backend_agg import RendererAgg

    return RendererAgg(1, 1, style.CSS_PIXELS)


def inches_of(text, size, weight):
    """How wide a text of one or more lines is."""
    from matplotlib.font_manager import FontProperties

    font = FontProperties(family=style.fonts(), size=size, weight=weight)
    lines = (_ruler().get_text_width_height_descent(line, font, ismath=False)[0] for line in text.split("\n"))
    return max(lines) / style.CSS_PIXELS


def fitted(text, inches, lines, size=9, weight="normal") -> str:
    """`text`, in the reader's language, folded to at most `lines` lines of `inches` at most, whatever its characters.

    If it is longer, its middle gives way to "…": labels tend to differ at their ends.
    """
    text = clean(style.said(text))
    for width in range(min(len(text) + 1, int(180 * inches / size)), 0, -1):  # no font has narrower letters
        wrapper = textwrap.TextWrapper(width, break_on_hyphens=False)
        wrapper.wordsep_simple_re = BETWEEN
        folded = wrapper.wrap(text)
        if len(folded) > lines:
            half = width // 2
            folded[lines - 1 :] = [folded[lines - 1][:half] + "…" + text[len(text) - (width - half - 1) :]]
        if inches_of("\n".join(folded), size, weight) <= inches:
            break
    return "\n".join(folded)


# -- the sheet ----------------------------------------------------------------------------


@contextmanager
def sheet(title="", high=2.9, *, how="", key=(), notes=(), panels=1, ratios=None, stacked=False):
    """Make a figure, and lay it out when the block ends; yields (figure, panels).

    Args:
        title: the point, in bold. how: a line below it.
        high: inches of each panel.
        key: (name, colour, hatch) of a swatch, or (name, colour, None, marker) of a mark.
        notes: sentences for the foot; empty ones are left out.
        panels: how many, side by side in widths of `ratios`, or `stacked` above each other.
    """
    with style.look():
        figure = style.canvas(1, layout="constrained")
        grid = (panels, 1) if stacked else (1, panels)
        axes = list(figure.subplots(*grid, squeeze=False, width_ratios=ratios).flat) if panels else []
        yield figure, axes
        style.put_into_words(figure)
        wide = style.WIDTH - 0.3
        key = [(style.said(words), *look) for words, *look in key]
        texts = [(0.1, fitted(title, wide, 1, 13, "bold"), {"size": 13, "weight": "bold"})] if title else []
        texts += [(0.38, fitted(how, wide, 1), {"size": 9, "color": style.SOFT})] if how else []
        top = 0.1 + 0.3 * bool(title) + 0.22 * bool(how)
        legend, lines = _legend(figure, key)
        foot = "\n".join(fitted(note, wide, 6) for note in notes if note)
        head, low = top + 0.2 * lines + 0.06 * bool(lines), 0.08 + 0.17 * len(foot.splitlines())
        _fit(figure, axes, high, head, low)
        texts.append((figure.get_figheight() - low, foot, {"size": 9, "color": style.SOFT, "linespacing": 1.25}))
        for y, text, font in texts:
            figure.text(0.1 / style.WIDTH, 1 - y / figure.get_figheight(), text, va="top", **font)
        if legend:
            legend.set_bbox_to_anchor((0.1 / style.WIDTH, 1 - top / figure.get_figheight()), figure.transFigure)


def _legend(figure, key):
    """(legend, lines) of the entries, in as many columns as there is room for."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def handle(name, colour, hatch, marker=""):
        if marker:
            return Line2D([], [], color=colour, marker=marker, linestyle="", label=name)
        return Patch(facecolor=colour, hatch=hatch, edgecolor=style.INK, linewidth=0.6, label=name)

    for columns in range(len(key), 0, -1):
        legend = figure.legend(
            handles=[handle(*entry) for entry in key],
            loc="upper left",
            ncols=columns,
            frameon=False,
            borderpad=0,
            borderaxespad=0,
            fontsize=9,
            handlelength=1.9,
            handleheight=1.1,
            handletextpad=0.6,
            columnspacing=1.4,
        )
        legend.set_in_layout(False)
        if columns == 1 or legend.get_window_extent(_ruler()).width < (style.WIDTH - 0.2) * figure.dpi:
            return legend, math.ceil(len(key) / columns)
        legend.remove()
    return None, 0


def _fit(figure, axes, high, head, low):
    """Make the figure so high that its panels are `high`, with `head` and `low` inches left free; freeze the layout."""
    engine, rows = figure.get_layout_engine(), axes[0].get_gridspec().nrows if axes else 0
    figure.set_figheight(head + low + rows * high + 1)
    for _ in range(2 if axes else 0):  # what is above and below a panel is as high in any figure
        tall = figure.get_figheight()
        engine.set(rect=(0.1 / style.WIDTH, low / tall, 1 - 0.2 / style.WIDTH, 1 - (head + low) / tall))
        engine.execute(figure)
        figure.set_figheight(round(tall + rows * (high - axes[0].get_position().height * tall), 3))
    if not axes:
        figure.set_figheight(head + low)
    figure.set_layout_engine("none")
    for each in axes:  # the solver's last digits depend on the order in memory, and so would a file's bytes
        each.set_position([round(side, 5) for side in each.get_position().bounds])


# -- rows ---------------------------------------------------------------------------------


def name_rows(axes, names, inches=3.4, lines=2, size=10, others=()):
    """A row for each name, from the top down, with the name to the left; `others` are panels of the same rows."""
    for each in (axes, *others):
        each.set(ylim=(len(names) - 0.5, -0.5), yticks=[])
    axes.set_yticks(range(len(names)), [fitted(name, inches, lines, size) for name in names], size=size)
    axes.tick_params(axis="y", labelcolor=style.INK, pad=6)


def bar(axes, y, value, look=(style.SKY, ""), left=0, height=0.56, **options):
    """A bar of a colour and a hatch."""
    colour, hatch = look
    axes.barh(y, value, height, left, color=colour, hatch=hatch, edgecolor=style.INK, linewidth=0.7, **options)


def whisker(axes, y, value, low, high):
    """The spread of a bar's value."""
    spread = [[max(0, value - low)], [max(0, high - value)]]
    axes.errorbar(value, y, xerr=spread, color=style.INK, capsize=3.5, linewidth=1.4)


def rows(title, unit, named, *, key=(), notes=(), marks=(), line=None, most=0, high=0.5, thick=0.56):
    """The figure of stacked bars, a row each, with a text beside it.

    Args:
        unit: the name of the axis.
        named: (name, [(value, (colour, hatch)), …], text) of each row.
        marks: (row, value, marker, colour) of further marks.
        line: a value to compare with. most: what the axis shows at least.
    """
    ends = [sum(value for value, _ in bars if math.isfinite(value)) for _, bars, _ in named]
    most = max([most, *ends, *(mark[1] for mark in marks), line or 0]) or 1
    with sheet(title, high * len(named), key=key, notes=notes) as (figure, [axes]):
        name_rows(axes, [name for name, *_ in named])
        axes.set(xlim=(0, 1.04 * most), xlabel=clean(unit))
        ticks(axes.xaxis, "{:,g}", 8)
        for y, (_, bars, text) in enumerate(named):
            left = 0
            for value, look in bars:
                if value and math.isfinite(value):
                    bar(axes, y, value, look, left, thick)
                    left += value
            style.beside(axes, y, text)
        for y, value, marker, colour in marks:
            axes.plot(value, y, marker, color=colour, markersize=8, clip_on=False)
        if line is not None:
            axes.axvline(line, color=style.INK, linewidth=1.5)
    return figure


# -- lines --------------------------------------------------------------------------------


def ticks(axis, text="{:,g}", count=6, **options):
    """At most `count` ticks at round numbers, written as `text`."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=count, steps=[1, 2, 5, 10], **options))
    axis.set_major_formatter(lambda value, _: text.format(value) if value or "×" not in text else "0")


def line_style(place) -> dict:
    """How the line at a place among others looks: colour, dashes, width and mark."""
    _, dashes, width = LINES[place % len(LINES)]
    colour = LINES[(place + 3 * (place // len(LINES))) % len(LINES)][0]
    return {
        "color": colour,
        "linestyle": dashes,
        "linewidth": width,
        "marker": MARKS[place % len(MARKS)],
        "markersize": 7,
        "markevery": [-1],
        "clip_on": False,
    }


def line_names(labels, inches=NAMES, lines=2, least=2.9):
    """(names, high): labels as they stand beside the ends of lines, and inches of a panel with room for all."""
    names = [fitted(label, inches, lines) for label in labels]
    return names, max(least, _pitch(names) * len(names))


def _pitch(names):
    return 0.34 if any("\n" in name for name in names) else 0.2


def name_ends(axes, ends, names, high, looks=None):
    """Write the value and the name of each line beside its end, and lead the lines that go furthest there.

    Args:
        ends: (x, y, value in words) of each line; the axes' limits are set.
        high: inches of the panel. The names are so far apart that all can be read.
        looks: color and linestyle of each line; None: those of `line_style`.
    """
    transform = axes.transData + axes.transAxes.inverted()  # the axis may be logarithmic
    axes.get_xlim(), axes.get_ylim()  # which sets limits that are still open
    level = [transform.transform((x, y))[1] for x, y, _ in ends]
    pitch = _pitch(names) / high
    last, furthest = 1 + pitch, max((x for x, _, _ in ends), default=0)
    for below, place in zip(range(len(ends))[::-1], sorted(range(len(ends)), key=lambda n: -level[n]), strict=True):
        last = max(min(level[place], last - pitch), below * pitch)
        x, y, value = ends[place]
        look = (looks or [line_style(n) for n in range(len(ends))])[place]
        axes.annotate(
            f"{value}  {names[place]}".strip(),
            (x, y),
            (1.09, last),
            "data",
            textcoords="axes fraction",
            va="center",
            annotation_clip=False,
            size=9,
        )
        # A leader to any other end would cross the lines that go further: there the mark says which line it is.
        if x == furthest:
            axes.annotate(
                "",
                (x, y),
                (1.048, last),
                "data",
                textcoords="axes fraction",
                annotation_clip=False,
                arrowprops={"arrowstyle": "-", "linewidth": 0.7, "shrinkA": 0, "shrinkB": 3, "color": style.SOFT},
            )
        axes.plot(
            (1.05, 1.065, 1.08),
            [last] * 3,
            transform=axes.transAxes,
            clip_on=False,
            markersize=5,
            markevery=[1],
            linewidth=look.get("linewidth", 1.8),
            **{key: look.get(key) for key in ("color", "linestyle", "marker")},
        )


def lines(title, series, x, y, text, *, thin=(), notes=(), marks=(), log=None, low=None, stairs=False):
    """The figure of a line for each {label: {x: y}}, named at its end with its last value.

    Args:
        text: function that writes a value.
        thin: {label: [{x: y}, …]}, single runs behind the line of that label.
        marks: (x, y, text) of crosses.
        log: the base of a logarithmic axis. low: the least that the axis shows.
        stairs: a value holds until the next.

    Raises:
        ValueError: there is no point.
    """
    if not all(series.values()) or not series:
        raise ValueError("no line has a point: nothing to draw")
    names, high = line_names(series, NAMES - 0.3, least=2.2)  # values take up to six digits
    points = [(a, b) for line in series.values() for a, b in line.items()] + [mark[:2] for mark in marks]
    first, last = min(a for a, _ in points), max(a for a, _ in points)
    single = [(label, line) for label, of in dict(thin).items() for line in of]
    values = [b for _, b in points if math.isfinite(b)] + [b for _, line in single for b in line.values()]
    with sheet(title, high, notes=notes) as (figure, [axes]):
        for label, line in single:
            look = line_style(list(series).index(label))
            axes.plot(list(line), list(line.values()), color=look["color"], linestyle=look["linestyle"], linewidth=0.8)
        for place, line in enumerate(series.values()):
            axes.plot(list(line), list(line.values()), **line_style(place), drawstyle="steps-mid" if stairs else None)
        for a, b, words in marks:
            axes.plot(a, b, "X", color=style.RED, markersize=9, zorder=5, clip_on=False)
            side, where = (1, "left") if a < (first + last) / 2 else (-1, "right")
            axes.annotate(
                words,
                (a, b),
                xytext=(9 * side, 0),
                textcoords="offset points",
                ha=where,
                va="center",
                zorder=4,
                color=style.RED,
                size=9,
            )
        axes.set(xlabel=x, ylabel=clean(y), xlim=(first - 0.02 * (last - first) * bool(marks), 1.03 * max(last, 1)))
        ticks(axes.xaxis, count=8, integer=True)
        axes.grid(axis="y")
        if log:
            axes.set_yscale("log", base=log)
            axes.set_ylim(min(values) / 2.5, max(values) * 2.5)
            axes.minorticks_off()
            axes.yaxis.set_major_formatter(
                lambda value, _: style.power(2, math.log2(value)) if log == 2 else f"{value:g}"
            )
        elif values:
            axes.set_ylim(min([*values, math.inf if low is None else low]), max(values) * 1.06 or 1)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        name_ends(axes, [(max(line), line[max(line)], text(line[max(line)])) for line in series.values()], names, high)
    return figure

"""What all figures share: a sheet with title, key and notes, rows of bars, and lines with names at their ends.

Constrained layout places the panels: names, ticks and the numbers beside them take the room they need.
"""

import math
import re
import textwrap
from contextlib import contextmanager

from . import style
from .style import clean

# Colour, dashes and width of the lines of several runs; of two equal runs the first shows below the second.
COLOURS = (style.BLUE, style.ORANGE, style.INK, style.GREEN, style.RED, style.PURPLE, style.SKY, style.GREY)
DASHES = ("solid", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), "solid", (0, (8, 3)), (0, (3, 1)), "solid")
WIDTHS = (3, 2.6, 1.8, 1.8, 1.2, 1.6, 1.6, 1.6)
MARKS = "osD^v<>PXh*p"  # at the ends of lines, so that no two of 24 lines are alike
NAMES = 2.15  # inches of the names beside the ends of lines
DASHED = (0, (4, 3))
# Where a line may end: at a space, and after a Chinese character, unless a mark follows that no line begins with.
BETWEEN = re.compile("([\t\n\v\f\r ]+)|(?<=[\u4e00-\u9fff，。；：、）])(?=[\u4e00-\u9fff（])")


def inches_of(text, size, weight="normal") -> float:
    """How wide a text of one or more lines is."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family=style.fonts(), size=size, weight=weight)
    return max(text_to_path.get_text_width_height_descent(line, font, False)[0] for line in text.split("\n")) / 72


def fitted(text, inches, lines, size=9, weight="normal") -> str:
    """`text` folded to at most `lines` lines of about `inches`.

    If it is longer, its middle gives way to "…": labels tend to differ at their ends.
    """
    text = clean(text)
    width = max(2, int(len(text) * inches / max(inches_of(text, size, weight), 0.01)))  # characters of a line
    wrapper = textwrap.TextWrapper(width, break_on_hyphens=False)
    wrapper.wordsep_simple_re = BETWEEN
    folded = wrapper.wrap(text)
    if len(folded) > lines:
        half = width // 2
        folded[lines - 1 :] = [folded[lines - 1][:half] + "…" + text[len(text) - (width - half - 1) :]]
    return "\n".join(folded)


# -- the sheet ----------------------------------------------------------------------------


@contextmanager
def sheet(title="", high=2.9, *, how="", key=(), notes=(), panels=1, ratios=None, stacked=False):
    """Make a figure, and lay it out when the block ends; yields (figure, panels).

    Args:
        title: the point, in bold. how: the first line of the foot.
        high: inches of each panel.
        key: (name, colour, hatch) of a swatch, or (name, colour, None, marker) of a mark.
        notes: sentences for the foot; empty ones are left out.
        panels: how many, side by side in widths of `ratios`, or `stacked` above each other.
    """
    grid = (panels, 1) if stacked else (1, panels)
    with style.look():
        figure = style.canvas(3 + high * grid[0], layout="constrained")
        axes = list(figure.subplots(*grid, squeeze=False, width_ratios=ratios).flat)
        yield figure, axes
        _head(figure, title, key)
        foot = "\n".join(fitted(note, style.WIDTH - 0.3, 6) for note in (how, *notes) if note)
        figure.set_figheight(figure.get_figheight() + 0.18 * foot.count("\n"))
        figure.supxlabel(foot, x=0.1 / style.WIDTH, ha="left", size=9, color=style.SOFT, linespacing=1.25)
        _fit(figure, axes, high * grid[0])


def _head(figure, title, key):
    """The title, which is that of the legend, and the entries of the key below it."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def handle(name, colour, hatch, marker=""):
        if marker:
            return Line2D([], [], color=colour, marker=marker, linestyle="", label=name)
        return Patch(facecolor=colour, hatch=hatch, edgecolor=style.INK, linewidth=0.6, label=name)

    room, widths = style.WIDTH - 0.3, [inches_of(name, 9) + 0.55 for name, *_ in key] or [1]
    if title or key:
        figure.legend(
            handles=[handle(*entry) for entry in key],
            ncols=len(widths) if sum(widths) < room else max(1, int(room / max(widths))),
            title=fitted(title, room, 1, 13, "bold"),
            title_fontproperties={"weight": "bold", "size": 13},
            loc="outside upper left",
            alignment="left",
            frameon=False,
            borderpad=0,
            borderaxespad=0.8,
            fontsize=9,
            handleheight=1.1,
            columnspacing=1.4,
        )


def _fit(figure, axes, high):
    """Make the figure so high that its panels have `high` inches together; then freeze the layout."""
    engine = figure.get_layout_engine()
    engine.set(rect=(0.012, 0, 0.976, 1))
    engine.execute(figure)
    tall = figure.get_figheight()
    figure.set_figheight(round(tall + high - tall * sum({each.get_position().height for each in axes[:1]}), 3))
    engine.execute(figure)
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
    """The interval of a bar's value; nothing where it is not known."""
    if low is not None:
        spread = [[max(0, value - low)], [max(0, high - value)]]
        axes.errorbar(value, y, xerr=spread, color=style.INK, capsize=3.5, linewidth=1.4)


def rows(title, unit, named, *, key=(), notes=(), marks=(), line=None, most=0, high=0.5, thick=0.56):
    """The figure of stacked bars, a row each, with a text beside it.

    Args:
        unit: the name of the axis.
        named: (name, [(value, (colour, hatch)), …], text) of each row.
        marks: (row, value, marker, colour) of further marks; those whose value is None are left out.
        line: a value to compare with. most: what the axis shows at least.
    """
    ends = [sum(value for value, _ in bars if math.isfinite(value)) for _, bars, _ in named]
    marks = [mark for mark in marks if mark[1] is not None]
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
    again, kind = divmod(place, len(WIDTHS))
    look = {"color": COLOURS[(place + 3 * again) % len(COLOURS)], "linestyle": DASHES[kind], "linewidth": WIDTHS[kind]}
    return look | {"marker": MARKS[place % len(MARKS)], "markersize": 7, "markevery": [-1], "clip_on": False}


def line_names(labels, inches=NAMES, lines=2, least=2.9):
    """(names, high): labels as they stand beside the ends of lines, and inches of a panel with room for all."""
    names = [fitted(label, inches, lines) for label in labels]
    return names, max(least, _pitch(names) * len(names))


def _pitch(names):
    return 0.34 if any("\n" in name for name in names) else 0.2


def name_ends(axes, ends, names, high, looks=None):
    """Write the value and the name of each line beside its end, led to by a stroke that looks like the line.

    Args:
        ends: (x, y, value in words) of each line; the axes' limits are set.
        high: inches of the panel. The names are so far apart that all can be read.
        looks: color and linestyle of each line; None: those of `line_style`.
    """
    transform = axes.transData + axes.transAxes.inverted()  # the axis may be logarithmic
    axes.get_xlim(), axes.get_ylim()  # which sets limits that are still open
    level = [transform.transform((x, y))[1] for x, y, _ in ends]
    pitch = _pitch(names) / high
    last = 1 + pitch
    for below, place in zip(range(len(ends))[::-1], sorted(range(len(ends)), key=lambda n: -level[n]), strict=True):
        last = max(min(level[place], last - pitch), below * pitch)
        x, y, value = ends[place]
        look = looks[place] if looks else line_style(place)
        leader = {"arrowstyle": "-", "relpos": (0, 0.5), "shrinkA": 0, "shrinkB": 4, "linewidth": 0.8, "alpha": 0.6}
        leader |= {key: look.get(key) for key in ("color", "linestyle")}
        text, where = f"{value}  {names[place]}".strip(), {"textcoords": "axes fraction", "annotation_clip": False}
        axes.annotate(text, (x, y), (1.07, last), arrowprops=leader, va="center", size=9, **where)


def lines(title, series, x, y, text, *, thin=(), band=(), notes=(), marks=(), line=None, log=None, low=None, **options):
    """The figure of a line for each {label: {x: y}}, named at its end with its last value.

    Args:
        text: function that writes a value.
        thin: {label: [{x: y}, …]}, single runs behind the line of that label.
        band: {label: {x: (low, high)}}, drawn as a light band.
        marks: (x, y) of crosses. line: a value to compare with.
        log: the base of a logarithmic axis. low: the least that the axis shows.
        options: stairs=True where a value holds until the next, doubling=True for an x axis of powers of two.

    Raises:
        ValueError: there is no point.
    """
    if not all(series.values()) or not series:
        raise ValueError("no line has a point: nothing to draw")
    names, high = line_names(series, NAMES - 0.3, least=2.2)  # values take up to six digits
    single = [(label, run) for label, runs in dict(thin).items() for run in runs]
    values = [value for run in [*series.values(), *(run for _, run in single)] for value in run.values()]
    values += [end for ends in dict(band).values() for pair in ends.values() for end in pair]
    values = [value for value in [*values, line or values[0]] if math.isfinite(value)]
    places = sorted({place for run in series.values() for place in run})
    with sheet(title, high, notes=notes) as (figure, [axes]):
        for label, run in single:
            look = line_style(list(series).index(label))
            axes.plot(list(run), list(run.values()), color=look["color"], linestyle=look["linestyle"], linewidth=0.8)
        for place, (label, run) in enumerate(series.items()):
            look, ends = line_style(place), dict(band).get(label, {})
            if ends:
                lower, upper = zip(*ends.values(), strict=True)
                axes.fill_between(list(ends), lower, upper, color=look["color"], alpha=0.18, linewidth=1)
            axes.plot(list(run), list(run.values()), **look, drawstyle="steps-mid" if options.get("stairs") else None)
        for place in marks:
            axes.plot(*place, "X", color=style.RED, markersize=9, zorder=5, clip_on=False)
        if line is not None:
            axes.axhline(line, color=style.INK, linewidth=2.2)
        axes.set(xlabel=x, ylabel=clean(y), xlim=(-0.02 * places[-1] if marks else 0, 1.03 * max(places[-1], 1)))
        ticks(axes.xaxis, count=8, integer=True)
        axes.grid(axis="y")
        if options.get("doubling"):
            axes.set_xscale("log", base=2)
            axes.set_xlim(places[0] / 1.1, places[-1] * 1.1)
            axes.set_xticks(places, [f"{place:,g}" for place in places])
            axes.minorticks_off()
        if log:
            axes.set_yscale("log", base=log)
            axes.set_ylim(min(values) / 2.5, max(values) * 2.5)
            axes.minorticks_off()
        elif values:
            axes.set_ylim(min([*values, math.inf if low is None else low]), max(values) * 1.06 or 1)
        powers = log and max(values) > 1e4
        write = (lambda value: style.power(log, math.log(value, log))) if powers else "{:,g}".format
        axes.yaxis.set_major_formatter(lambda value, _: write(value))
        ends = [(max(run), run[max(run)], text(run[max(run)])) for run in series.values()]
        name_ends(axes, ends, names, high)
    return figure

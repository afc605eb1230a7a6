"""What several figures draw alike: titles, notes, and lines with their names beside their ends."""

import textwrap

from . import style
from .style import clean

LINES = (  # of several runs: colour, dashes, width; of two equal runs the first shows below the second
    (style.BLUE, "solid", 4), (style.ORANGE, (0, (5, 2)), 2.6), (style.INK, (0, (1, 1.5)), 1.8),
    (style.GREEN, (0, (6, 2, 1, 2)), 1.8), (style.RED, "solid", 1.2), (style.PURPLE, (0, (8, 3)), 1.6),
    (style.SKY, (0, (3, 1)), 1.6), (style.GREY, "solid", 1.6),
)  # fmt: skip
MARKS = "osD^v<>PXh*p"  # at the ends of lines, so that no two of 24 lines are alike
AXES, NAMES = 4.95, 2.15  # inches: width of the axes, and of the names to the right of them


def line_style(place) -> dict:
    """How the line at a place among others looks: colour, dashes, width and mark."""
    _, dashes, width = LINES[place % len(LINES)]
    colour = LINES[(place + 3 * (place // len(LINES))) % len(LINES)][0]
    return {
        "color": colour, "linestyle": dashes, "linewidth": min(width, 3), "marker": MARKS[place % len(MARKS)],
        "markersize": 7, "markeredgecolor": "white", "markeredgewidth": 0.7,
    }  # fmt: skip


def fitted(figure, text, inches, lines, size=9, **font) -> str:
    """`text` folded to at most `lines` lines of `inches` at most, whatever its characters.

    If it is longer, its middle gives way to "…": labels tend to differ at their ends.
    """
    text = clean(text)
    for width in range(min(len(text) + 1, int(180 * inches / size)), 0, -1):  # no font has narrower letters
        folded = textwrap.wrap(text, width, break_on_hyphens=False)
        if len(folded) > lines:
            half = width // 2
            folded[lines - 1 :] = [folded[lines - 1][:half] + "…" + text[len(text) - (width - half - 1) :]]
        sample = style.write_at(figure, 0, 0, "\n".join(folded), size=size, **font)
        wide = style.extent(figure, sample).width
        sample.remove()
        if wide <= inches:
            break
    return "\n".join(folded)


def write_title(figure, text):
    text = fitted(figure, text, style.WIDTH - 0.3, 1, size=13, weight="bold")
    style.write_at(figure, 0.1, 0.1, text, size=13, weight="bold")


def write_foot(figure, top, notes):
    """Make the figure as high as its notes need and write them, from `top` inches on."""
    said = "\n".join(fitted(figure, note, style.WIDTH - 0.3, 6) for note in notes if note)
    figure.set_figheight(top + 0.1 + 0.17 * len(said.splitlines()))
    style.write_at(figure, 0.1, top, said, color=style.SOFT, size=9, linespacing=1.25)


def key(figure, left, top, entries):
    """Rows of swatches with their names, from inches on, in the order of the bars; returns where they end.

    Args:
        entries: (name, colour, hatch) of each.
    """
    from matplotlib.patches import Rectangle

    wide, high = figure.get_size_inches()
    x = left
    for name, colour, hatch in entries:
        text = style.write_at(figure, x + 0.31, top + 0.08, name, va="center", size=9)
        if style.extent(figure, text).x1 > wide - 0.1 and x > left:
            x, top = left, top + 0.22
            text.set_position(((x + 0.31) / wide, 1 - (top + 0.08) / high))
        figure.add_artist(Rectangle(
            (x / wide, 1 - (top + 0.16) / high), 0.24 / wide, 0.16 / high, transform=figure.transFigure,
            facecolor=colour, hatch=hatch, edgecolor=style.INK, linewidth=0.6,
        ))  # fmt: skip
        x = style.extent(figure, text).x1 + 0.18
    return top + 0.16


def heights(names):
    """Inches between the names of lines, and of axes high enough for all of them."""
    pitch = 0.34 if any("\n" in name for name in names) else 0.2
    return pitch, max(2.9, pitch * len(names))


def row_names(figure, names, top, row):
    """Write names to the left of bars, in rows `row` inches high; returns where the panel may begin."""
    texts = [
        style.write_at(figure, 0.1, top + row * (y + 0.42), name, va="center", linespacing=1.1, size=10)
        for y, name in enumerate(names)
    ]
    return max(style.extent(figure, text).x1 for text in texts) + 0.2


def name_ends(axes, ends, pitch, looks=None):
    """Name each line beside its end; the names are `pitch` inches apart, so that all can be read.

    A thin line leads to a piece of the line and its name, or, with `looks`, a line of that look to the name.

    Args:
        ends: (x, y, number, name) of the lines, in their order.
        looks: a dict of colour and line style for each; None: those of `line_style`.
    """
    wide, high = (axes.bbox.width / axes.figure.dpi, axes.bbox.height / axes.figure.dpi)
    for (place, (x, y, value, name)), where in _from_top(axes, ends, pitch / high):
        look = {"color": style.SOFT, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4}
        text, left = "", 1 + 0.15 / wide
        if looks:
            look = {**looks[place], "linewidth": 1.4, "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 3}
            text, left = f"{value}  {name}", 1.06
        axes.annotate(
            text, (x, y), (left, where), "data", textcoords="axes fraction", annotation_clip=False, va="center", size=9,
            arrowprops={"arrowstyle": "-", **look},
        )  # fmt: skip
        if looks:
            continue
        sample = [1 + inches / wide for inches in (0.15, 0.33, 0.51)]
        axes.plot(sample, [where] * 3, **line_style(place), markevery=[1], transform=axes.transAxes, clip_on=False)
        name = name.replace("\n", "\n" + "\u2007" * len(value) + "  ")  # as many spaces as wide as a digit
        first = where - 0.075 * name.count("\n") / high  # so that the first line is beside the piece of the line
        axes.text(1 + 0.6 / wide, first, f"{value}  {name}", transform=axes.transAxes, va="center", size=9)


def _from_top(axes, ends, pitch):
    """((place, end), height of its name) from the top; heights and `pitch` are fractions of the axes' height."""
    transform = axes.transData + axes.transAxes.inverted()  # the axis may be logarithmic
    level = [transform.transform((x, y))[1] for x, y, *_ in ends]
    last = 1 + pitch
    for below, place in zip(range(len(ends))[::-1], sorted(range(len(ends)), key=lambda n: -level[n]), strict=True):
        last = max(min(level[place], last - pitch), below * pitch)
        yield (place, ends[place]), last

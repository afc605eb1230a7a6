"""The figures of a report of many runs: rows of names with one number in each of a few panels."""

from . import style
from .drawing import fitted, key, row_names, write_foot, write_title
from .style import beside

FILLS = {  # whose number it is: colour and hatch
    "ours": (style.SKY, ""), "another machine": (style.ORANGE, "//"), "theirs": (style.GREY, "xx"),
}  # fmt: skip
ROW, HEAD, GAP, NUMBER = 0.36, 0.9, 0.2, 0.68  # inches: a row, above them, between panels, for a number
KEY = 0.3  # inches for the key, where there is one
NAMES = 3.3  # inches at most for the names


def panels(title, how, rows, columns, notes=()) -> tuple:
    """Bars in a panel for each column, a row for each run, every number in a column of its own beside them.

    Args:
        rows: dicts with "name", "kind" (a key of FILLS) and a number, or None, for each column; a number may be
            (value, low, high), which draws a whisker.
        columns: (key, title, function that writes a number, value of a line to compare with or None).

    Raises:
        ValueError: there is no row with a number.
    """
    columns = [column for column in columns if any(_value(row.get(column[0])) is not None for row in rows)]
    if not columns:
        raise ValueError("there is nothing to draw: no row has a number in any column")
    kinds = [kind for kind in FILLS if any(row["kind"] == kind for row in rows)]
    top = HEAD + KEY * (len(kinds) > 1)
    with style.look():
        figure = style.canvas(1)
        high = ROW * len(rows)
        write_foot(figure, top + high + 0.12, notes)
        write_title(figure, title)
        style.write_at(figure, 0.1, 0.38, fitted(figure, how, style.WIDTH - 0.3, 1), color=style.SOFT, size=9)
        if len(kinds) > 1:
            key(figure, 0.1, HEAD - 0.2, [(kind, *FILLS[kind]) for kind in kinds])
        names = [fitted(figure, row["name"], NAMES, 1, size=10) for row in rows]
        left = row_names(figure, names, top + 0.08 * ROW, ROW)
        width = (style.WIDTH - left - len(columns) * (NUMBER + GAP)) / len(columns)
        for column in columns:
            _panel(figure, rows, column, left, top, width)
            left += width + NUMBER + GAP
    return figure, _told(title, how, rows, columns, notes)


def _panel(figure, rows, column, left, top, width):
    name, title, say, reference = column
    axes = style.panel(figure, left, top, width, ROW * len(rows))
    known = [end for row in rows for end in _ends(row.get(name)) if end is not None]
    axes.set(xlim=(0, 1.05 * max([*known, reference or 0]) or 1), ylim=(len(rows) - 0.5, -0.5), xticks=[], yticks=[])
    style.write_at(figure, left, top - 0.21, title, weight="bold", size=9.5)
    for y, row in enumerate(rows):
        value = _value(row.get(name))
        if value is not None:
            colour, hatch = FILLS[row["kind"]]
            axes.barh(y, value, height=0.56, color=colour, hatch=hatch, edgecolor=style.INK, linewidth=0.7)
            _, low, upper = _ends(row[name])
            if low is not None:
                spread = [[max(0, value - low)], [max(0, upper - value)]]
                axes.errorbar(value, y, xerr=spread, color=style.INK, capsize=3, linewidth=1.2)
        beside(axes, y, say(value), color=style.SOFT if value is None else style.INK)
    if reference is not None:
        axes.axvline(reference, color=style.INK, linewidth=1.2)


def _value(cell):
    return cell[0] if isinstance(cell, tuple) else cell


def _ends(cell):
    return cell if isinstance(cell, tuple) else (cell, None, None)


def _told(title, how, rows, columns, notes):
    """All numbers in words."""
    told = []
    for row in rows:
        numbers = [(title, say, _value(row.get(name))) for name, title, say, _ in columns]
        said = ", ".join(f"{title} {say(value)}" for title, say, value in numbers if value is not None)
        whose = "" if row["kind"] == "ours" else f" ({row['kind']})"
        told.append(f"{style.clean(row['name'])}{whose}: {said or 'nothing measured'}.")
    return " ".join([f"{style.clean(title)}, {style.clean(how)}.", *told, *map(style.clean, notes)])

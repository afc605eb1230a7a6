"""Many runs in a few columns: rows of names with one number in each of a few panels."""

from ..language import N_, _
from . import style
from .layout import bar, fitted, name_rows, sheet, whisker
from .style import clean, readable, sentence

LOOKS = {  # whose number it is: colour and hatch
    N_("ours"): (style.SKY, ""),
    N_("recorded"): (style.SKY, ".."),
    N_("another machine"): (style.ORANGE, "//"),
    N_("theirs"): (style.GREY, "xx"),
}


@readable()
def panels(title, how, rows, columns, notes=()) -> tuple:
    """Bars in a panel for each column, a row for each run, every number in a column of its own beside them.

    Args:
        rows: dicts with "name", "kind" (a key of LOOKS) and a number, or None, for each column; a number may be
            (value, low, high), which draws a whisker, or (value, [points]), which draws a circle at each.
        columns: (key, title, function that writes a number, value of a line to compare with or None).

    Raises:
        ValueError: there is no row with a number.
    """
    columns = [column for column in columns if any(_value(row, column[0]) is not None for row in rows)]
    if not columns:
        raise ValueError("there is nothing to draw: no row has a number in any column")
    kinds = [kind for kind in LOOKS if any(row["kind"] == kind for row in rows)]
    key = [(_(kind), *LOOKS[kind]) for kind in kinds] if len(kinds) > 1 else ()
    with sheet(title, 0.36 * len(rows), how=how, key=key, notes=notes, panels=len(columns)) as (figure, axes):
        wide = 3.3 if len(columns) < 4 else 2.2
        name_rows(axes[0], [row["name"] for row in rows], wide, 2, 9, axes[1:])
        for each, column in zip(axes, columns, strict=True):
            each.set_title(fitted(column[1], (style.WIDTH - wide) / len(columns) - 0.2, 2, 9.5, "bold"))
            panel(each, rows, column)
    alt = [_("{text}.").format(text=_(", ").join(map(clean, (title, how))))]
    for row in rows:
        known = [(title, text, _value(row, key)) for key, title, text, _reference in columns]
        words = [f"{title} {text(value)}" for title, text, value in known if value is not None]
        alt.append(sentence(row["name"], *(words or ["–"])))
    return figure, " ".join(alt)


def _value(row, key):
    cell = row.get(key)
    return cell[0] if isinstance(cell, tuple) else cell


def panel(axes, rows, column):
    """One column of `panels`."""
    key, _title, text, reference = column
    ends = [reference or 0]
    for y, row in enumerate(rows):
        value, more = _value(row, key), row[key][1:] if isinstance(row.get(key), tuple) else ()
        points = more[0] if len(more) == 1 else []
        if value is not None:
            bar(axes, y, value, LOOKS[row["kind"]])
        if len(more) == 2:
            whisker(axes, y, value, *more)
        for point in points:
            axes.plot(point, y, "o", markersize=5, fillstyle="none", color=style.INK, clip_on=False)
        ends += [end for end in (value, *points, *more[1:]) if end is not None]
        style.beside(axes, y, text(value), color=style.SOFT if value is None else style.INK)
    axes.set(xlim=(0, 1.05 * max(ends) or 1), xticks=[])
    if reference is not None:
        axes.axvline(reference, color=style.INK, linewidth=1.2)

"""The figures of a report of many runs: rows of names with one number in each of a few panels."""

from ..launcher.language import listed, local, marked
from . import style
from .layout import bar, name_rows, sheet, whisker

LOOKS = {  # whose number it is: colour and hatch
    marked("ours"): (style.SKY, ""),
    marked("recorded"): (style.SKY, ".."),
    marked("another machine"): (style.ORANGE, "//"),
    marked("theirs"): (style.GREY, "xx"),
}


def panels(title, how, rows, columns, notes=(), named=None) -> tuple:
    """Bars in a panel for each column, a row for each run, every number in a column of its own beside them.

    Args:
        rows: dicts with "name", "kind" (a key of LOOKS) and a number, or None, for each column; a number may be
            (value, low, high), which draws a whisker.
        columns: (key, title, function that writes a number, value of a line to compare with or None).
        named: {kind: what the key calls it}, where rows of one name differ in their kind only.

    Raises:
        ValueError: there is no row with a number.
    """
    columns = [column for column in columns if any(_ends(row.get(column[0]))[0] is not None for row in rows)]
    if not columns:
        raise ValueError("there is nothing to draw: no row has a number in any column")
    kinds = [kind for kind in LOOKS if any(row["kind"] == kind for row in rows)]
    key = [((named or {}).get(kind, kind), *LOOKS[kind]) for kind in kinds] if len(kinds) > 1 else ()
    with sheet(title, 0.36 * len(rows), how=how, key=key, notes=notes, panels=len(columns)) as (figure, axes):
        name_rows(axes[0], [row["name"] for row in rows], 3.3, 1, 10, axes[1:])
        for each, column in zip(axes, columns, strict=True):
            _panel(each, rows, column)
    if named:
        rows = [{**row, "name": f"{row['name']}, {named.get(row['kind'], row['kind'])}"} for row in rows]
    about = local("{text}.", text=listed(map(style.clean, (title, how))))
    return figure, " ".join([about, *(_words(rows, *c[:3]) for c in columns)])


def _panel(axes, rows, column):
    key, title, text, reference = column
    known = [end for row in rows for end in _ends(row.get(key)) if end is not None]
    axes.set(xlim=(0, 1.05 * max([*known, reference or 0]) or 1), xticks=[])
    axes.set_title(title)
    for y, row in enumerate(rows):
        value, low, high = _ends(row.get(key))
        if value is not None:
            bar(axes, y, value, LOOKS[row["kind"]])
            if low is not None:
                whisker(axes, y, value, low, high)
        style.beside(axes, y, text(value), color=style.SOFT if value is None else style.INK)
    if reference is not None:
        axes.axvline(reference, color=style.INK, linewidth=1.2)


def _ends(cell):
    return cell if isinstance(cell, tuple) else (cell, None, None)


def _words(rows, key, title, text):
    """The least and the largest number of a column."""
    known = sorted(
        ((_ends(row.get(key))[0], style.clean(row["name"])) for row in rows if _ends(row.get(key))[0] is not None),
        key=lambda each: each[0],
    )
    (low, first), (high, last) = known[0], known[-1]
    if low == high:
        return listed([f"{text(low)} ({first if len(known) == 1 else local('all')})"], about=style.clean(title))
    ends = {"low": text(low), "first": first, "high": text(high), "last": last}
    return local("{title}: from {low} ({first}) to {high} ({last}).", title=style.clean(title), **ends)

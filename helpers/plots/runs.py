"""Where the wall time of single runs went."""

from ..launcher.language import listed, marked
from ..records import read
from ..records.words import name, number
from . import style
from .layout import bar, name_rows, sheet

PARTS = {  # of the wall time, in the order of the run: colour and hatch
    marked("start"): (style.GREY, ""),
    marked("data"): (style.YELLOW, ".."),
    marked("warm-up"): (style.ORANGE, "//"),
    marked("steps"): (style.SKY, ""),
    marked("evaluation"): (style.PURPLE, "\\\\"),
    marked("checkpoint"): (style.GREEN, "xx"),
    marked("rest"): ("none", ""),
}


def parts(records) -> tuple:
    """The wall time of each run by part; "rest" is what no part accounts for.

    Args:
        records: a record or a list of records; those of runs that failed are left out.

    Raises:
        ValueError: no record has been measured.
    """
    given = [records] if isinstance(records, dict) else records
    records = [record for record in given if record.get("measured")]
    if not records:
        raise ValueError(f"none of the {len(given)} record(s) has been measured: look at their status and error")
    spent = [wall_time(record) for record in records]
    known = dict.fromkeys((*PARTS, *(part for of in spent for part in of)))
    looks = {part: PARTS.get(part, ("none", "ooo")) for part in known if any(of.get(part) for of in spent)}
    alt = [marked("Wall time of the whole run by part, in seconds.")]
    key = [(part, *look) for part, look in looks.items()]
    with sheet(marked("Where the wall time went"), 0.68 * len(records), key=key) as (figure, [axes]):
        name_rows(axes, [name(row(record)) for record in records], 2.1, 3)
        axes.set(xlim=(0, max(record["total_s"] for record in records)), xlabel=marked("seconds"))
        for y, (record, of) in enumerate(zip(records, spent, strict=True)):
            begin = 0
            for part, look in looks.items():
                bar(axes, y - 0.13, of.get(part, 0), look, begin, 0.4, clip_on=False)
                begin += of.get(part, 0)
            words = [f"{style.said(part)} {number(of[part], 2)}" for part in looks if of.get(part)]
            axes.text(0, y + 0.23, f"{style.said(', ').join(words)} s", va="center", size=9, color=style.SOFT)
            style.beside(axes, y - 0.13, f"{number(record['total_s'])} s", weight="bold")
            alt.append(listed([f"{number(record['total_s'])} s in all", listed(words)], "; ", name(row(record))))
    return figure, " ".join(alt)


def wall_time(record) -> dict:
    """Seconds by part of a measured record, in the order of PARTS, with what is left as "rest"."""
    known = record["measured"]["parts_s"]
    spent = {part: known[part] for part in dict.fromkeys((*PARTS, *known)) if part in known}
    return spent | {"rest": max(0.0, record["total_s"] - sum(known.values()))}


def row(record) -> dict:
    """`read.row` with the note that a run's name depends on."""
    return {**read.row(record), "note": (record.get("measured") or {}).get("note")}

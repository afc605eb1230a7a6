"""Where the wall time of single runs went."""

from ..language import N_, _
from ..records import read
from ..records.words import name, number
from . import style
from .layout import rows
from .style import readable, sentence

PARTS = {  # of the wall time, in the order of the run: colour and hatch
    N_("start"): (style.GREY, ""),
    N_("data"): (style.YELLOW, ".."),
    N_("warm-up"): (style.ORANGE, "//"),
    N_("steps"): (style.SKY, ""),
    N_("evaluation"): (style.PURPLE, "\\\\"),
    N_("checkpoint"): (style.GREEN, "xx"),
    N_("rest"): ("none", ""),
}


@readable()
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
    spent = [dict(record["measured"]["parts_s"]) for record in records]
    for of, record in zip(spent, records, strict=True):
        of["rest"] = max(0.0, record["total_s"] - sum(of.values()))
    looks = {part: look for part, look in PARTS.items() if any(of.get(part) for of in spent)}
    names = [name({**read.row(record), "note": record["measured"].get("note")}) for record in records]
    totals = [number(record["total_s"]) for record in records]
    named = [
        (label, [(of.get(part, 0), look) for part, look in looks.items()], f"{total} s")
        for label, of, total in zip(names, spent, totals, strict=True)
    ]
    key = [(_(part), *look) for part, look in looks.items()]
    figure = rows(_("Where the wall time went"), _("seconds"), named, key=key, high=0.68, thick=0.34)
    alt = [_("Wall time of the whole run by part, in seconds.")]
    for y, (label, of, total) in enumerate(zip(names, spent, totals, strict=True)):
        words = [f"{_(part)} {number(of[part], 2)}" for part in looks if of.get(part)]
        figure.axes[0].text(0, y + 0.33, f"{_(', ').join(words)} s", va="center", size=9, color=style.SOFT)
        alt.append(sentence(label, _("{total_s} s in all").format(total_s=total), *words))
    return figure, " ".join(alt)

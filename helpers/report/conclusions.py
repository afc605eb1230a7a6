"""What a page of conclusions says: each run beside the baseline of its comparison, in one table."""

from ..plots.style import clean, percent, times
from .pairs import Said, ids, overlap, timed

COLUMNS = ("comparison", "run", "samples/s of the baseline's", "whole run", "accuracy", "verdict")
FASTER, SLOWER, NEITHER = "faster", "slower", "not shown"


def conclusions(report, most=24) -> list:
    """Rows of texts as in COLUMNS, each a Said with the ids of its records; the newest comparison of each name.

    Two runs differ where the 95% interval of their speed-up does not hold 1. The whole run counts start, data,
    training and evaluation.
    """
    found, seen = [], set()
    for site in report.sites:
        for ladder in site.ladders:
            name = (site.name, ladder.name.split("-", 2)[-1], ladder.what)
            if not ladder.comparison or name in seen:
                continue
            seen.add(name)
            base, *others = zip(ladder.rows(), ladder.records, strict=True)
            found += [_row(name, row, record, *base) for row, record in others if timed(record) and timed(base[1])]
    return found[:most]


def _row(name, row, record, base_row, base):
    verdict = NEITHER if overlap(row, base_row) else FASTER if row["speed_up"] > 1 else SLOWER
    speed = f"{times(row['speed_up'])} ({times(row['speed_up_low'])} to {times(row['speed_up_high'])})"
    whole = row["whole_run_speed_up"]
    told = "–" if row["accuracy"] is None else percent(row["accuracy"])
    if None not in (row["accuracy"], base_row["accuracy"]):
        told += f" ({100 * (row['accuracy'] - base_row['accuracy']):+.1f} points)"
    cells = (clean(name[1], 40), clean(row["label"], 40), speed, times(whole) if whole else "–", told, verdict)
    return Said(cells, ids(record, base))

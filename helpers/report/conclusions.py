"""What a page of conclusions says: each run beside the baseline of its comparison, in one table."""

from ..language import N_, _
from ..plots.style import clean, percent, times
from ..records.speedup import SpeedUp
from .compare_runs import Said, ids, timed

COLUMNS = (N_("comparison"), N_("run"), N_("speed-up"), N_("whole run"), N_("accuracy"), N_("verdict"))
FASTER, SLOWER, NOT_SHOWN = N_("faster"), N_("slower"), N_("not shown")


def verdict(row) -> str:
    """FASTER or SLOWER than the baseline; NOT_SHOWN where the 95% interval of the ratio holds 1."""
    found = SpeedUp(row["speed_up"], row["speed_up_low"], row["speed_up_high"])
    if not found.shown:
        return NOT_SHOWN
    return FASTER if found.ratio > 1 else SLOWER


def conclusions(report, most=24) -> list:
    """Rows of texts as in COLUMNS, each a Said with the ids of its records; the newest comparison of each name.

    The whole run counts start, data, training and evaluation.
    """
    found, seen = [], set()
    for machine in report.machines:
        for ladder in machine.ladders:
            name = (machine.name, ladder.name.split("-", 2)[-1], ladder.what)
            if not ladder.comparison or name in seen:
                continue
            seen.add(name)
            base, *others = zip(ladder.rows(), ladder.records, strict=True)
            found += [_row(name[1], row, record, *base) for row, record in others if timed(record) and timed(base[1])]
    return found[:most]


def _row(name, row, record, base_row, base):
    speed = times(row["speed_up"])
    if row["speed_up_low"] is not None:
        speed += _(" ({low} to {high})").format(low=times(row["speed_up_low"]), high=times(row["speed_up_high"]))
    accuracy = percent(row["accuracy"])
    if None not in (row["accuracy"], base_row["accuracy"]):
        points = f"{100 * (row['accuracy'] - base_row['accuracy']):+.1f}"
        accuracy += _(" ({points} points)").format(points=points)
    cells = (clean(name, 40), clean(row["label"], 40), speed, times(row["whole_run_speed_up"]), accuracy)
    return Said((*cells, _(verdict(row))), ids(record, base))

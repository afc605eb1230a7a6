"""What a ladder says: in a few sentences, or beside its baseline in a row, each with the records that back it."""

from typing import NamedTuple

from ..language import N_, _
from ..plots.style import clean, name, number, percent, sentence, times
from ..records.speedup import SPEED_UP, shows
from .causes import causes
from .ladders import ids, timed

COLUMNS = (N_("comparison"), N_("run"), N_("speed-up"), N_("whole run"), N_("accuracy"), N_("verdict"))
FASTER, SLOWER, NOT_SHOWN = N_("faster"), N_("slower"), N_("not shown")
SPEED = {
    FASTER: N_("{row} was faster: {speed} the samples/s of {base} (95% interval {low} to {high})"),
    SLOWER: N_("{row} was slower: {speed} the samples/s of {base} (95% interval {low} to {high})"),
    NOT_SHOWN: N_("{row}: no difference is shown, {speed} the samples/s of {base} (95% interval {low} to {high})"),
}


class Said(NamedTuple):
    """A sentence, or the cells of a row, and the ids of the records that back it."""

    text: str | tuple
    runs: tuple


def verdict(row) -> str:
    """FASTER or SLOWER than the baseline; NOT_SHOWN where the 95% interval of the ratio holds 1."""
    if not shows(row):
        return NOT_SHOWN
    return FASTER if row["speed_up"] > 1 else SLOWER


def conclusions(report, most=24) -> list:
    """Rows of texts as in COLUMNS, each a Said with the ids of its records; the newest comparison of each name.

    The whole run counts start, data, training and evaluation.
    """
    found, seen = [], set()
    for machine, ladder in report.ladders:
        name = (machine.name, ladder.name.split("-", 2)[-1], ladder.what)
        if ladder.comparison and name not in seen:
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


def of_ladder(ladder, records) -> list:
    """Sentences (Said) about the runs of a ladder, the baseline first.

    Args:
        records: those of the same machine, the ladder's own last, among which causes are looked for.
    """
    base, rows = ladder.comparison and ladder.comparison.baseline, ladder.rows()
    said, notes = [], {}
    for record, row in zip(ladder.records, rows, strict=True):
        label = name({**row, "label": clean(row["label"], 60)})
        if row["status"] != "completed":
            said.append(Said(sentence(label, _(row["status"]), clean(row["note"], 160).rstrip(".")), ids(record)))
            continue
        alone = record is base or not base or row["speed_up_low"] is None
        text = sentence(label, *_numbers(row)) if alone else _beside(label, row, rows[0])
        said.append(Said(text, ids(record) if alone else ids(record, base)))
        if row["note"]:
            notes.setdefault(row["note"], Said(sentence(label, clean(_(row["note"]), 300).rstrip(".")), ids(record)))
        said += (Said(*cause) for cause in causes(record, records))
    return said + [*notes.values()]


def _numbers(row):
    """The numbers of one run in words."""
    if not row["step_time_s"]:
        return [_("too few steps to time")]
    low, middle, high = (number(1000 * row[key]) for key in ("step_time_low_s", "step_time_s", "step_time_high_s"))
    step = _("{middle} ms a step (95% interval {low} to {high} ms)").format(middle=middle, low=low, high=high)
    accuracy = _("accuracy {accuracy}").format(accuracy=percent(row["accuracy"]))
    return [step, f"{number(row['images_per_s'])} {row['samples_are']}/s", accuracy]


def _beside(label, row, base):
    """A run beside its baseline: speed, efficiency, and both accuracies, since speed never stands alone."""
    speed, low, high = (times(row[key]) for key in SPEED_UP)
    parts = [_(SPEED[verdict(row)]).format(row=label, base=name(base), speed=speed, low=low, high=high)]
    if row["devices"] > 1 and row["efficiency"]:
        parts.append(_("efficiency {efficiency}").format(efficiency=percent(row["efficiency"])))
    if None not in (row["accuracy"], base["accuracy"]):
        found, beside = percent(row["accuracy"]), percent(base["accuracy"])
        parts.append(_("accuracy {found} beside {percent}").format(found=found, percent=beside))
    return _("{text}.").format(text=_("; ").join(parts))

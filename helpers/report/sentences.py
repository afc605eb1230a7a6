"""What a ladder says, in a few sentences, each with the records that back it."""

from ..language import N_, _
from ..plots.style import clean, name, number, percent, sentence, times
from ..plots.tables import STEP
from .causes import causes
from .compare_runs import Said, ids
from .conclusions import FASTER, NOT_SHOWN, SLOWER, verdict

SPEED = {
    FASTER: N_("{row} was faster: {speed} the samples/s of {base} (95% interval {low} to {high})"),
    SLOWER: N_("{row} was slower: {speed} the samples/s of {base} (95% interval {low} to {high})"),
    NOT_SHOWN: N_("{row}: no difference is shown, {speed} the samples/s of {base} (95% interval {low} to {high})"),
}


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
        said += causes(record, records)
    return said + [*notes.values()]


def _numbers(row):
    """The numbers of one run in words."""
    if not row["step_time_s"]:
        return [_("too few steps to time")]
    low, middle, high = (number(1000 * row[key]) for key in STEP)
    step = _("{middle} ms a step (middle half {low} to {high} ms)").format(middle=middle, low=low, high=high)
    accuracy = _("accuracy {accuracy}").format(accuracy=percent(row["accuracy"]))
    return [step, f"{number(row['images_per_s'])} {row['samples_are']}/s", accuracy]


def _beside(label, row, base):
    """A run beside its baseline: speed, efficiency, and both accuracies, since speed never stands alone."""
    values = {"speed": row["speed_up"], "low": row["speed_up_low"], "high": row["speed_up_high"]}
    values = {key: times(value) for key, value in values.items()}
    parts = [_(SPEED[verdict(row)]).format(row=label, base=name(base), **values)]
    if row["devices"] > 1 and row["efficiency"]:
        parts.append(_("efficiency {efficiency}").format(efficiency=percent(row["efficiency"])))
    if None not in (row["accuracy"], base["accuracy"]):
        shares = {"found": percent(row["accuracy"]), "percent": percent(base["accuracy"])}
        parts.append(_("accuracy {found} beside {percent}").format(**shares))
    return _("{text}.").format(text=_("; ").join(parts))

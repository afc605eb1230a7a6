"""What a ladder says, in a few sentences, each with the records that back it."""

from ..language import N_, _
from ..plots.style import clean, name, number, percent, sentence, times
from ..plots.tables import STEP
from .causes import causes
from .compare_runs import Said, differences, ids
from .conclusions import FASTER, NOT_SHOWN, SLOWER, verdict

SPEED = {
    FASTER: N_("{row} was faster: {speed} the samples/s of {base} (95% interval {low} to {high})."),
    SLOWER: N_("{row} was slower: {speed} the samples/s of {base} (95% interval {low} to {high})."),
    NOT_SHOWN: N_(
        "For {row} a difference is not shown: {speed} the samples/s of {base}, and the 95% interval, {low} to {high}, "
        "holds 1×."
    ),
}


def of_ladder(ladder, records) -> list:
    """Sentences (Said) about the runs of a ladder, the baseline first.

    Args:
        records: those of the same machine, the ladder's own last, among which causes are looked for.
    """
    base, rows = ladder.comparison and ladder.comparison.baseline, ladder.rows()
    said = []
    for record, row in zip(ladder.records, rows, strict=True):
        if row["status"] != "completed":
            said.append(Said(sentence(_name(row), _(row["status"]), clean(row["note"], 160).rstrip(".")), ids(record)))
            continue
        if record is base or not base:
            said.append(Said(_measured(row), ids(record)))
        else:
            told = (_speed(row, rows[0]), _accuracy(row, rows[0], record, base))
            said += [Said(text, ids(record, base)) for text in told if text]
        said += causes(record, records)
    return said


def _name(row):
    return name({**row, "label": clean(row["label"], 60)})


# -- a run, and a run beside its baseline -------------------------------------------------


def _measured(row):
    if not row["step_time_s"]:
        return sentence(_name(row), _("too few steps to time"))
    low, middle, high = (number(1000 * row[key]) for key in STEP)
    step = _("{middle} ms a step (middle half {low} to {high} ms)").format(middle=middle, low=low, high=high)
    words = [step, f"{number(row['images_per_s'])} {row['samples_are']}/s"]
    if row["accuracy"] is not None:
        words.append(_("accuracy {accuracy}").format(accuracy=percent(row["accuracy"])))
    return sentence(_name(row), *words)


def _speed(row, base):
    if row["speed_up_low"] is None:
        return _("{row} or {base} had too few steps to time.").format(row=_name(row), base=_name(base))
    numbers = {key: times(row[of]) for key, of in (("speed", "speed_up"), ("low", "speed_up_low"))}
    told = _(SPEED[verdict(row)]).format(row=_name(row), base=_name(base), high=times(row["speed_up_high"]), **numbers)
    if row["devices"] > 1 and row["efficiency"]:
        told += " " + _("Ideal is {devices}×: an efficiency of {efficiency}.").format(
            devices=row["devices"], efficiency=percent(row["efficiency"])
        )
    return told


def _accuracy(row, base, record, baseline):
    """Both accuracies, and the settings in which the runs differ; no record says which is the cause."""
    if None in (row["accuracy"], base["accuracy"]):
        return ""
    words = {"row": _name(row), "base": _name(base)}
    shares = {"accuracy": percent(row["accuracy"]), "of_base": percent(base["accuracy"])}
    told = _("{row}: accuracy {accuracy}, {base} {of_base}.").format(**words, **shares)
    differ = {one.name: one for one in differences(record, baseline) if one.changes_learning}
    if "global_batch" in differ or row["devices"] != base["devices"]:
        differ.pop("local_batch", None)  # it follows from the others
    values = [
        _("{noun} {record} instead of {baseline}").format(
            noun=_(one.noun),
            record=clean(record["config"].get(key), 40),
            baseline=clean(baseline["config"].get(key), 40),
        )
        for key, one in differ.items()
    ]
    if values:
        trained = _("{row} was trained with other settings than {base}: {values}.")
        told += " " + trained.format(**words, values=_(", ").join(values))
    return told

"""Statistics over the seeds of each run: final accuracy, speed, and time to a stated accuracy.

`groups` is {label: [records, one a seed]}. A run that failed, or that was trained without
`evaluate_every` and so has no curve of its accuracy, is left out; `left_out` says so.
"""

import math
from collections import Counter
from statistics import fmean, median, median_low

from ..language import N_, _
from . import read, speedup
from .words import clean, samples_of

NO_CURVE = N_("without a curve")


def summary(groups, target):
    """The numbers behind the figures as a pandas DataFrame, a row a label.

    Accuracies are shares of one, those of the end of the training. "seconds to target" is the median
    over the seeds, where one that never reached the target counts as slower than all others, so it is
    missing if half of them never did. Speed-ups are over the first label.

    Raises:
        ValueError: no record has a curve, or `target` is no share of one.
    """
    import pandas

    found = rows(groups, target)
    rate = f"{samples_of(found)}/s"
    columns = {name: name.replace("_", " ") for name in ("label", "seeds", "left_out", "steps")}
    columns |= {"accuracy": "accuracy mean", "accuracy_min": "accuracy min", "accuracy_max": "accuracy max"}
    columns |= {"images_per_s": rate, "reached": "seeds at target", "seconds": "seconds to target"}
    columns |= {"speed_up": f"speed-up in {rate}", "speed_up_to_target": "speed-up to target"}
    return pandas.DataFrame(found)[list(columns)].rename(columns=columns)


def rows(groups, target) -> list:
    """One dict a label with its numbers; None where it has none. Errors as in `summary`."""
    check_target(target)
    groups = {label: [of] if isinstance(of, dict) else list(of) for label, of in groups.items()}
    made = [_row(label, records, target) for label, records in groups.items()]
    if not any(row["seeds"] for row in made):
        count = sum(map(len, groups.values()))
        raise ValueError(f"none of the {count} record(s) has a curve of its accuracy: train with evaluate_every=1")
    base, *_others = together = [next(iter(read.merged(row["records"])), {}) for row in made]
    for row, record in zip(made, together, strict=True):
        speed, seconds = speedup.of_records(record, base), made[0]["seconds"]
        row["speed_up"] = speed and speed.ratio
        row["speed_up_to_target"] = seconds / row["seconds"] if seconds and row["seconds"] else None
    return made


def check_target(target) -> None:
    """Raises ValueError where the accuracy to reach is no share of one."""
    if not isinstance(target, (int, float)) or not 0 < target <= 1:
        raise ValueError(f"target is {target!r}; give an accuracy as a share of one, such as 0.95")


def _row(label, records, target):
    kept = [record for record in records if curve(record)]
    curves, measured, final = [curve(record) for record in kept], [record["measured"] for record in kept], []
    for of, m in zip(curves, measured, strict=True):
        end = (m.get("evaluation") or {}).get("accuracy")
        final.append(of[-1]["accuracy"] if end is None else end)
    rates = [m["images_per_s"]["median"] for m in measured if m["images_per_s"]]
    times = [read.time_to_accuracy(record, target) for record in kept]
    reached = sorted(time for time in times if time is not None)
    seconds = median([*reached, *[math.inf] * (len(times) - len(reached))]) if times else math.inf
    return {
        "label": clean(label),
        "records": kept,
        "seeds": len(kept),
        "left_out": _reasons(records),
        "curves": curves,
        "steps": median_low(of[-1]["step"] for of in curves) if kept else None,
        "accuracy": fmean(final) if kept else None,
        "accuracy_min": min(final, default=None),
        "accuracy_max": max(final, default=None),
        "images_per_s": median(rates) if rates else None,
        "samples_are": next((m["samples_are"] for m in measured if m.get("samples_are")), "images"),
        "times": reached,
        "reached": len(reached),
        "seconds": seconds if math.isfinite(seconds) else None,
        "notes": list(dict.fromkeys(clean(m["note"]).rstrip(".") + "." for m in measured if m.get("note"))),
    }


def curve(record) -> list:
    """The evaluations of a completed run that have an accuracy."""
    found = (record["measured"].get("curve") or []) if record["status"] == "completed" else []
    return [entry for entry in found if entry["accuracy"] is not None]


def _reasons(records):
    """Why seeds are missing, such as "1 run failed"; "" if none is."""
    counts = Counter(record["status"] for record in records if not curve(record))
    told = []
    for status, n in counts.items():
        why = _(NO_CURVE if status == "completed" else status)
        told.append((_("1 run {why}") if n == 1 else _("{n} runs {why}")).format(n=n, why=why))
    return ", ".join(told) if records else _("no runs")


# -- in words -----------------------------------------------------------------------------


def left_out(made) -> str:
    """A sentence about the runs that these rows leave out, or ""."""
    told = [f"{row['label']} ({row['left_out']})" for row in made if row["left_out"]]
    return _("Left out: {told}.").format(told=", ".join(told)) if told else ""


def marks(made) -> dict:
    """A mark for each note that these rows have, such as {"4 processes share 2 cores": "*"}."""
    notes = dict.fromkeys(note for row in made for note in row["notes"])
    return {note: "*" * count for count, note in enumerate(notes, start=1)}


def with_marks(row, known) -> str:
    """A row's label with the `marks` of its notes."""
    return row["label"] + " ".join(known[note] for note in row["notes"])


def trained(made) -> str:
    """What was trained, such as "resnet8 on digits"."""
    return _of_all(made, _("{model} on {data}"), lambda record: record["config"])


def machine(made) -> str:
    """What it was trained on, such as "Some CPU (cpu), 2 CPU cores"."""
    return _of_all(made, _("{name} ({kind}), {cores} CPU cores"), lambda record: record["environment"]["machine"])


def _of_all(made, text, values):
    return clean(" / ".join(dict.fromkeys(text.format(**values(record)) for row in made for record in row["records"])))

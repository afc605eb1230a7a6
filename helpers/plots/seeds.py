"""Statistics over the seeds of each run: final accuracy, speed, and time to a stated accuracy.

`groups` is {label: [records, one a seed]}. A run that failed, or that was trained without
`evaluate_every` and so has no curve of its accuracy, is left out; `left_out` says so.
"""

import math
from statistics import fmean, median, median_low

from ..language import _
from ..records import read, speedup
from ..records.words import clean
from .tables import settings


def rows(groups, target) -> list:
    """One dict a label with its numbers, speed-ups over the first; None where it has none.

    "seconds" to the target is the median over the seeds, where one that never reached it counts as slower than all
    others, so it is missing if half of them never did.

    Raises:
        ValueError: no record has a curve, or `target` is no share of one.
    """
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
    times = [read.time_to_accuracy(record, target) for record in kept]
    reached = sorted(time for time in times if time is not None)
    seconds = median([*reached, *[math.inf] * (len(times) - len(reached))]) if times else math.inf
    return {
        "label": clean(label),
        "records": kept,
        "seeds": len(kept),
        "left_out": len(records) - len(kept),
        "curves": curves,
        "steps": median_low(of[-1]["step"] for of in curves) if kept else None,
        "accuracy": fmean(final) if kept else None,
        "accuracy_min": min(final, default=None),
        "accuracy_max": max(final, default=None),
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


# -- in words -----------------------------------------------------------------------------


def left_out(made) -> str:
    """A sentence about the runs that these rows leave out, or ""."""
    labels = ", ".join(f"{row['label']} ({row['left_out']})" for row in made if row["left_out"])
    return _("Left out, since they failed or have no curve: {labels}.").format(labels=labels) if labels else ""


def trained(made) -> str:
    """What was trained, such as "resnet8 on digits"."""
    return settings([record for row in made for record in row["records"]])[0]


def machine(made) -> str:
    """What it was trained on, such as "Some CPU (cpu), 2 CPU cores"."""
    machines = [record["environment"]["machine"] for row in made for record in row["records"]]
    return clean(" / ".join(dict.fromkeys(_("{name} ({kind}), {cores} CPU cores").format(**one) for one in machines)))

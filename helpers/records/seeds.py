"""Several seeds of each run put together: final accuracy, speed, and time to a stated accuracy.

`groups` is {label: [records, one a seed]}. A run that failed, or that was trained without
`evaluate_every` and so has no curve of its accuracy, is left out; `left_out` says so.
"""

import math
from collections import Counter
from statistics import fmean, median, median_low

from ..launcher.language import marked
from . import read
from .words import clean, samples_of

MARKS = "*†‡§"  # of notes


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
    columns = {
        "label": "label",
        "seeds": "seeds",
        "left_out": "left out",
        "steps": "steps",
        "accuracy": "accuracy mean",
        "accuracy_min": "accuracy min",
        "accuracy_max": "accuracy max",
        "images_per_s": rate,
        "reached": "seeds at target",
        "seconds": "seconds to target",
        "speed_up": f"speed-up in {rate}",
        "speed_up_to_target": "speed-up to target",
    }
    cells = [[row[key] for key in columns] for row in found]
    return pandas.DataFrame(cells, columns=list(columns.values()))


def rows(groups, target) -> list:
    """One dict a label with its numbers; None where it has none. Errors as in `summary`."""
    check_target(target)
    groups = {label: [of] if isinstance(of, dict) else list(of) for label, of in groups.items()}
    made = [_row(label, records, target) for label, records in groups.items()]
    if not any(row["seeds"] for row in made):
        count = sum(map(len, groups.values()))
        raise ValueError(
            f"none of the {count} record(s) has a curve of its accuracy: the runs failed, or were trained without "
            "evaluate_every. Look at their status and error, or run them again with evaluate_every=1"
        )
    base = made[0]
    for row in made:
        row["speed_up"] = _ratio(row["images_per_s"], base["images_per_s"])
        row["speed_up_to_target"] = _ratio(base["seconds"], row["seconds"])
    return made


def check_target(target) -> None:
    """Raises ValueError where the accuracy to reach is no share of one."""
    if isinstance(target, bool) or not isinstance(target, (int, float)) or not 0 < target <= 1:
        raise ValueError(f"target is {target!r}; give an accuracy as a share of one, such as 0.95")


def _row(label, records, target):
    kept = [record for record in records if curve(record)]
    measured = [record["measured"] for record in kept]
    ends = [(m.get("evaluation") or {}).get("accuracy") for m in measured]
    final = [curve(r)[-1]["accuracy"] if end is None else end for r, end in zip(kept, ends, strict=True)]
    rates = [m["images_per_s"]["median"] for m in measured if m["images_per_s"]]
    times = [read.time_to_accuracy(record, target) for record in kept]
    seconds = median(math.inf if time is None else time for time in times) if times else math.inf
    return {
        "label": clean(label),
        "records": kept,
        "seeds": len(kept),
        "left_out": _reasons(records),
        "curves": [curve(record) for record in kept],
        "steps": median_low(c[-1]["step"] for c in map(curve, kept)) if kept else None,
        "accuracy": fmean(final) if kept else None,
        "accuracy_min": min(final, default=None),
        "accuracy_max": max(final, default=None),
        "images_per_s": median(rates) if rates else None,
        "samples_are": next((m["samples_are"] for m in measured if m.get("samples_are")), "images"),
        "times": sorted(time for time in times if time is not None),
        "reached": sum(time is not None for time in times),
        "seconds": seconds if math.isfinite(seconds) else None,
        "notes": list(dict.fromkeys(clean(m["note"]).rstrip(".") + "." for m in measured if m.get("note"))),
    }


def curve(record) -> list:
    """The evaluations of a completed run that have an accuracy."""
    if record["status"] != "completed":
        return []
    return [entry for entry in record["measured"].get("curve") or [] if entry["accuracy"] is not None]


def _ratio(above, below):
    return above / below if above and below else None


def _reasons(records):
    """Why seeds are missing, such as "1 run failed"; "" if none is."""
    ended = (record["status"] for record in records if not curve(record))
    counts = Counter(status if status != "completed" else marked("without a curve") for status in ended)
    told = (marked(f"{n} run{'s' * (n > 1)} {why}") for why, n in counts.items())
    return ", ".join(told) if records else marked("no runs")


def left_out(made, said=str) -> str:
    """A sentence about the runs that these rows leave out, or ""; `said` as for `trained`."""
    told = [f"{row['label']} ({said(row['left_out'])})" for row in made if row["left_out"]]
    return marked(f"Left out: {', '.join(told)}.") if told else ""


def marks(made) -> dict:
    """A mark for each note that these rows have, such as {"4 processes share 2 cores": "*"}."""
    notes = dict.fromkeys(note for row in made for note in row["notes"])
    return {note: MARKS[k % len(MARKS)] * (1 + k // len(MARKS)) for k, note in enumerate(notes)}


def with_marks(row, known) -> str:
    """A row's label with the `marks` of its notes."""
    return row["label"] + " ".join(known[note] for note in row["notes"] if note in known)


def trained(made, said=str.format) -> str:
    """What was trained, such as "resnet8 on digits"; `said` puts it into the reader's language."""
    what = ("model", "data")
    return _all_of(made, lambda record: said("{model} on {data}", **{name: record["config"][name] for name in what}))


def machine(made, said=str.format) -> str:
    """What it was trained on, such as "Some CPU (cpu), 2 CPU cores"; `said` as for `trained`."""
    return _all_of(made, lambda record: said("{name} ({kind}), {cores} CPU cores", **record["environment"]["machine"]))


def _all_of(made, told):
    return clean(" / ".join(dict.fromkeys(told(record) for row in made for record in row["records"])))

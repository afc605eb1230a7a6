"""What a ladder says: each sentence with the records that back it."""

from ..plots.style import clean, number, percent, times
from ..records import seeds
from .causes import Said, causes
from .pairs import ids
from .sentences import reading

TARGET = 0.9  # accuracy; stated before anything is read, since one can be found that flatters any run


def of_ladder(ladder, records=None, target=TARGET) -> list:
    """Sentences (Said) about the runs of a ladder, the baseline first.

    Args:
        records: those of the same machine, the ladder's own last, which can say why a run was fast or slow; a list or
            a row of a `reading_pool` (None: the ladder's own).
        target: the accuracy whose time is told, a share of one.
    """
    base = ladder.comparison and ladder.comparison.baseline
    records = ladder.records if records is None else records
    plain = {}
    if ladder.comparison:
        for sentence, run in reading(ladder.comparison):
            plain.setdefault(run, []).append(sentence)
    arrivals = _arrivals(ladder, target)
    said = []
    for record in ladder.records:
        backed = ids(record) if record is base or not base else ids(record, base)
        if not base:
            said.append(_alone(record))
        said += [Said(sentence, backed) for sentence in plain.get(record["run_id"], ())]
        if record["status"] == "completed":
            said += causes(record, base if record is not base else None, records)
            said += filter(None, [_of_seeds(record), arrivals.get(record["label"])])
    return said


def _alone(record):
    """What can be said of a run without a baseline."""
    name = clean(record["label"], 60)
    if record["status"] != "completed":
        return Said(f"The run of {name} {record['status']}: {clean(record['error'], 160)}", ids(record))
    rate, speed = record["measured"]["step_time_s"], record["measured"]["images_per_s"]
    if not rate:
        return Said(f"{name} had too few steps to time.", ids(record))
    accuracy = (record["measured"]["evaluation"] or {}).get("accuracy")
    end = f", accuracy {percent(accuracy)}" if accuracy is not None else ""
    return Said(
        f"{name} took {number(1000 * rate['median'])} ms a step, {number(speed['median'])} images/s{end}. There is no "
        "completed run of one device with the same model and data to compare it with.", ids(record),
    )  # fmt: skip


def _of_seeds(record):
    found = (record["measured"]["evaluation"] or {}).get("of_seeds")
    if not found:
        return None
    return Said(
        f"The accuracy of {clean(record['label'], 60)} is the mean of {len(found)} seeds, {percent(found[0])} to "
        f"{percent(found[-1])}.", ids(record),
    )  # fmt: skip


def _arrivals(ladder, target):
    """{label: when that run reached the target, beside the first}."""
    groups = curves(ladder)
    if not groups:
        return {}
    made = {row["label"]: row for row in seeds.rows(groups, target)}
    first = next(iter(made.values()))
    return {label: _arrival(row, first, target) for label, row in made.items() if row["seeds"]}


def _arrival(row, first, target):
    backed, goal = ids(*row["records"]), f"{percent(target)} test accuracy"
    if not row["seconds"]:
        best = max(point["accuracy"] for curve in row["curves"] for point in curve)
        never = "did not reach" if row["seeds"] == 1 else "did not, with half of its seeds or more, reach"
        return Said(f"{row['label']} {never} {goal}; its best was {percent(best)}.", backed)
    told = f"{row['label']} reached {goal} after {number(row['seconds'])} s of training"
    if row is first or not first["seconds"]:
        return Said(told + ".", backed)
    speed = first["seconds"] / row["seconds"]
    slower = "" if speed >= 1 else ", so it came later"
    told += f", {first['label']} after {number(first['seconds'])} s ({times(speed)}{slower})"
    if row["speed_up"] and row["speed_up"] > 1 > speed:
        told += f": faster in images a second ({times(row['speed_up'])}), slower to the goal"
    return Said(told + ".", tuple(dict.fromkeys(backed + ids(*first["records"]))))


def curves(ladder) -> dict:
    """{label: the runs that recorded accuracy on the way}, the baseline's first; {} if there are none."""
    groups = {record["label"]: [] for record in ladder.records}
    for record in ladder.runs:
        if record["label"] in groups and seeds.curve(record):
            groups[record["label"]].append(record)
    return {label: runs for label, runs in groups.items() if runs}

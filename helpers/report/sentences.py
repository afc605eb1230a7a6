"""What ladders say, in plain sentences, each with the records that back it."""

import re

from ..config import SETTINGS
from ..launcher.language import marked
from ..plots.runs import wall_time
from ..plots.style import clean, name, number, percent, times
from ..plots.tables import STEP
from ..records import read, seeds
from .causes import causes
from .pairs import CLOSE, Said, called, differences, ids, overlap

TARGET = 0.9  # accuracy; stated before anything is read, since one can be found that flatters any run
TRAINING = [name for name, one in SETTINGS.items() if one.changes_learning or one.changes_timing]
FASTER, SLOWER, NEITHER = marked("faster"), marked("slower"), marked("no difference beyond the noise")
ELSEWHERE = marked("What pays on one machine does not on another.")


def of_ladder(ladder, records, target) -> list:
    """Sentences (Said) about the runs of a ladder, the baseline first.

    Args:
        records: those of the same machine, the ladder's own last, among which causes are looked for.
        target: the accuracy whose time is reported, a share of one.
    """
    base = ladder.comparison and ladder.comparison.baseline
    arrivals = _arrivals(ladder, target)
    rows = ladder.rows()
    said, known = [], set()
    for record, row in zip(ladder.records, rows, strict=True):
        backed = ids(record) if record is base or not base else ids(record, base)
        if not base:
            told = [_alone(record)]
        else:
            told = [_first(row)] if record is base else _compared(row, rows[0], record, base)
        said += [Said(text, backed) for text in told if text and text not in known]  # what holds for several, once
        known.update(told)
        if record["status"] == "completed":
            said += causes(record, base if record is not base else None, records)
            said += filter(None, [_of_seeds(record), arrivals.get(record["label"])])
    return said


# -- one run ------------------------------------------------------------------------------


def _alone(record):
    """What can be said of a run without a baseline."""
    if record["status"] != "completed":
        return f"The run of {called(record)} {record['status']}: {clean(record['error'], 160)}"
    row = read.row(record)
    if not row["step_time_s"]:
        return f"{called(record)} had too few steps to time."
    speed = f"{number(1000 * row['step_time_s'])} ms a step, {_rate(row)}"
    if row["accuracy"] is not None:
        speed = f"{speed}, accuracy {percent(row['accuracy'])}"
    return (
        f"{called(record)} took {speed}. There is no completed run of one device with the same model and data to "
        "compare it with."
    )


def _first(row):
    told = f"{_called(row)} is what the others are compared with"
    if row["step_time_s"]:
        low, middle, high = (number(1000 * row[key]) for key in STEP)
        told = f"{told}: {middle} ms a step (middle half {low} to {high} ms), {_rate(row)}"
    else:
        told = f"{told}; it had too few steps to time"
    if row["accuracy"] is not None:
        told = f"{told}, accuracy {percent(row['accuracy'])} of {row['tested']} test {row['tested_are']}"
    return told[0].upper() + told[1:] + "."


def _rate(row):
    return f"{number(row['images_per_s'])} {row['samples_are']}/s"


def _of_seeds(record):
    found = (record["measured"]["evaluation"] or {}).get("of_seeds")
    if not found:
        return None
    spread = f"{len(found)} seeds, {percent(found[0])} to {percent(found[-1])}"
    return Said(f"The accuracy of {called(record)} is the mean of {spread}.", ids(record))


# -- a run beside its baseline ------------------------------------------------------------


def _compared(row, base, record, baseline):
    if row["status"] != "completed":
        return [f"{_name(row)} has no numbers to compare, its run {_ended(row)}."]
    return [
        _step(row, base),
        _whole_run(row, base, record, baseline),
        _prediction(row),
        _accuracy(row, base),
        _settings(row, base, record, baseline),
        f"{_name(row)}: {clean(row['note'])}." if row["note"] else "",
    ]


def _step(row, base):
    speed = row["speed_up"]
    if not speed:
        return f"{_name(row)} or {_called(base)} had too few steps to time."
    unit = marked("a step") if row["global_batch"] == base["global_batch"] else marked("an image")
    spread = f"95% interval {times(row['speed_up_low'])} to {times(row['speed_up_high'])}"
    if abs(speed - 1) <= CLOSE:
        return f"{_name(row)} took about {_called(base)}'s time {unit} ({times(speed)}, {spread})."
    if overlap(row, base):
        return (
            f"{_name(row)} made no difference beyond the noise: {times(speed)!s} {_called(base)}'s speed {unit} "
            f"({spread}), and the 95% intervals of their medians overlap."
        )
    share = number(1 / speed, 2)
    told = f"{_name(row)} was slower: it took {share} times {_called(base)}'s time {unit} ({times(speed)}, {spread})"
    if speed > 1:
        told = f"{_name(row)} took {share} of {_called(base)}'s time {unit} ({times(speed)}, {spread})"
    if row["devices"] > 1 == base["devices"] and row["efficiency"]:
        ideal = f"{row['devices']}×"
        return f"{told}, where {ideal} would be ideal: an efficiency of {percent(row['efficiency'])}."
    return told + "."


def _whole_run(row, base, record, baseline):
    """Faster steps in a slower run help nobody, so the whole run has its sentence, if both saw as many images."""
    whole, speed = row["whole_run_speed_up"], row["speed_up"]
    seen = [one["config"]["global_batch"] * one["measured"]["steps"] for one in (record, baseline)]
    if not whole or not speed or abs(seen[0] - seen[1]) > CLOSE * max(seen):
        return ""
    mine, of_base = (number(run["total_s"]) for run in (row, base))
    told = f"The whole run of {_name(row)} took {mine} s, that of {_called(base)} {of_base} s ({times(whole)})"
    trap = whole < 1 - CLOSE and speed > 1 + CLOSE
    if not trap and (speed < 1 + CLOSE or whole > speed * (1 - CLOSE)):
        return told + "."
    others = {part: spent for part, spent in wall_time(record).items() if part != "steps"}
    most = max(others, key=others.get)
    told = f"{told}: slower, although its steps were faster" if trap else f"{told}: less was gained than in a step"
    rest, spent = number(sum(others.values()), 2), number(others[most], 2)
    return f"{told}. {rest} s of it were not timed steps, most of that {most} ({spent} s)."


def _prediction(row):
    predicted, measured = row["predicted"], row["speed_up"]
    if not predicted or not measured:
        return ""
    told = f"{times(predicted)} was predicted for {_name(row)} and {times(measured)} measured: the prediction was"
    ratio = predicted / measured
    if abs(ratio - 1) <= 0.05:
        return f"{told} right within 5%."
    if ratio >= 2:
        return f"{told} {number(ratio, 2)} times what was measured."
    off = f"{abs(ratio - 1):.0%}"
    return f"{told} {off} too high." if ratio > 1 else f"{told} {off} too low."


def _accuracy(row, base):
    if row["accuracy"] is None or base["accuracy"] is None:
        if row["final_loss"] is None or base["final_loss"] is None:
            return ""
        mine, of_base = number(row["final_loss"]), number(base["final_loss"])
        return (
            f"Accuracy was not measured on both; the final loss of {_name(row)} is {mine}, that of {_called(base)} "
            f"{of_base}."
        )
    share, tested, images = percent(row["accuracy"]), row["tested"], row["tested_are"]
    if row["accuracy"] == base["accuracy"]:
        return f"{_name(row)} is as accurate as {_called(base)}: {share} of {tested} test {images}."
    points = 100 * (row["accuracy"] - base["accuracy"])
    told = f"{_name(row)} classifies {share} of {tested} test {images} correctly"
    difference = f"{abs(points):.1f} points more" if points > 0 else f"{abs(points):.1f} points less"
    return marked(f"{told}, {_called(base)} {percent(base['accuracy'])} ({difference}).")


def _settings(row, base, record, baseline):
    """Where two runs differ in accuracy, the settings in which they differ; no record says which is the cause."""
    if None in (row["accuracy"], base["accuracy"]) or row["accuracy"] == base["accuracy"]:
        return ""
    differ = {one.name: one for one in differences(record, baseline)}
    if "global_batch" in differ or row["devices"] != base["devices"]:
        differ.pop("local_batch", None)  # it follows from the others
    learning = [one for one in differ.values() if one.changes_learning]
    if learning == [SETTINGS["global_batch"]]:
        return ""  # `causes` has more to say of it
    if learning:
        values = [f"{one.noun} {_value(record, one)} instead of {_value(baseline, one)}" for one in learning]
        return f"{_name(row)} was trained with other settings than {_called(base)}: {', '.join(values)}."
    timing = [one for one in differ.values() if one.changes_timing]
    only_devices = "accumulation" not in differ and all(one.spreads for one in timing)
    if row["strategy"] == "ddp" and row["devices"] > base["devices"] == 1 and only_devices:
        told = (
            f"Runs that differ from {_called(base)} only in the devices share all settings that change what is "
            "learned; their sums are rounded in another order"
        )
        if record["config"].get("sync_batch_norm"):
            return told + "."
        return f"{told}, and BatchNorm layers, if the model has any, see the samples of one device only."
    told = f"{_name(row)} and {_called(base)} share all settings that change what is learned"
    return f"{told}; they differ in {', '.join(one.noun for one in timing)}." if timing else ""


def _value(record, setting):
    return clean(record["config"].get(setting.name, setting.default), 40)


def _ended(row):
    """How a run without numbers ended; of a traceback only the error itself."""
    ended = {"failed": marked("failed"), "stopped": marked("was stopped")}[row["status"]]
    lines = row["note"].strip().splitlines() or [""]
    errors = [line for line in lines[1:] if re.match(r"[\w.]+(Error|Exception)\b", line)]
    reason = clean((errors or lines[:1])[-1], 160).rstrip(".")
    return f"{ended}: {reason}" if reason else ended


def _called(row):
    return marked("the baseline") if row["label"] == "baseline" else _name(row)


def _name(row):
    return name({**row, "label": clean(row["label"], 40)})


# -- time to an accuracy ------------------------------------------------------------------


def curves(ladder) -> dict:
    """{label: the runs that recorded accuracy on the way}, the baseline's first; {} if there are none."""
    groups = {record["label"]: [] for record in ladder.records}
    for record in ladder.runs:
        if record["label"] in groups and seeds.curve(record):
            groups[record["label"]].append(record)
    return {label: runs for label, runs in groups.items() if runs}


def _arrivals(ladder, target):
    """{label: when that run reached the target, beside the first}."""
    groups = curves(ladder)
    if not groups:
        return {}
    rows = {row["label"]: row for row in seeds.rows(groups, target)}
    first = next(iter(rows.values()))
    return {label: _arrival(row, first, target) for label, row in rows.items() if row["seeds"]}


def _arrival(row, first, target):
    backed, goal = ids(*row["records"]), f"{percent(target)} test accuracy"
    if not row["seconds"]:
        best = max(point["accuracy"] for curve in row["curves"] for point in curve)
        never = f"{row['label']} did not reach {goal}"
        if row["seeds"] > 1:
            never = f"{row['label']} did not, with half of its seeds or more, reach {goal}"
        return Said(f"{never}; its best was {percent(best)}.", backed)
    told = f"{row['label']} reached {goal} after {number(row['seconds'])} s of training"
    if row is first or not first["seconds"]:
        return Said(told + ".", backed)
    speed = first["seconds"] / row["seconds"]
    slower = times(speed) if speed >= 1 else f"{times(speed)}, so it came later"
    told = (
        f"{row['label']} reached {goal} after {number(row['seconds'])} s of training, {first['label']} after "
        f"{number(first['seconds'])} s ({slower})"
    )
    if row["speed_up"] and row["speed_up"] > 1 > speed:
        told = f"{told}: faster in {row['samples_are']} a second ({times(row['speed_up'])}), slower to the goal"
    return Said(told + ".", tuple(dict.fromkeys(backed + ids(*first["records"]))))


# -- several machines ---------------------------------------------------------------------


def shared(sites) -> list:
    """Runs that several machines have made: [(label, what, [(site, row, record, ladder)])], one site after another.

    Of each machine the newest ladder of the same training counts, if it has a baseline.
    """
    found = {}
    for site in sites if len(sites) > 1 else ():
        for ladder in site.ladders:
            for row, record in zip(ladder.rows(), ladder.records, strict=True) if ladder.comparison else ():
                kind = [row["label"]] + [record["config"].get(name) for name in TRAINING]
                seen = found.setdefault(str(kind), [])
                if row["images_per_s"] and site not in [other for other, *_ in seen]:
                    seen.append((site, row, record, ladder))
    return [(seen[0][1]["label"], seen[0][3].what, seen) for seen in found.values() if len(seen) > 1]


def between(sites) -> list:
    """Sentences (Said) about the runs that several machines have made, each beside the baseline of its own machine."""
    said = []
    for label, what, seen in shared(sites):
        run = clean(label, 60)
        if all(record is ladder.records[0] for _, _, record, ladder in seen):
            told = ", ".join(f"{_rate(row)} on {site.name}" for site, row, *_ in seen)
            text = f"{what}, {run}: {told}. All other speeds are given beside the baseline of their own machine."
        else:
            verdicts = [_verdict(row, ladder.rows()[0]) for _, row, _, ladder in seen]
            told = "; ".join(
                _on_a_machine(verdict, site.name, row, clean(ladder.records[0]["label"], 30))
                for verdict, (site, row, _, ladder) in zip(verdicts, seen, strict=True)
            )
            text = marked(f"{what!s}, {run!s}: {told}.")
            text += f" {ELSEWHERE}" * ({FASTER, SLOWER} <= {*verdicts})
        said.append(Said(text, tuple(run for *_, record, ladder in seen for run in ids(record, ladder.records[0]))))
    return said


def _on_a_machine(verdict, name, row, base):
    speed, accuracy = times(row["speed_up"]), percent(row["accuracy"])
    if row["accuracy"] is None:
        return {
            FASTER: f"faster, {speed!s} {base}'s speed on {name}",
            SLOWER: f"slower, {speed!s} {base}'s speed on {name}",
            NEITHER: f"no difference beyond the noise, {speed!s} {base}'s speed on {name}",
        }[verdict]
    return {
        FASTER: f"faster, {speed!s} {base}'s speed on {name}, accuracy {accuracy}",
        SLOWER: f"slower, {speed!s} {base}'s speed on {name}, accuracy {accuracy}",
        NEITHER: f"no difference beyond the noise, {speed!s} {base}'s speed on {name}, accuracy {accuracy}",
    }[verdict]


def _verdict(row, base):
    if overlap(row, base) or abs(row["speed_up"] - 1) <= CLOSE:
        return NEITHER
    return FASTER if row["speed_up"] > 1 else SLOWER

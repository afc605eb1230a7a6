"""What a comparison says, in plain sentences, each backed by one record."""

import re

from ..plots.runs import wall_time
from ..plots.style import clean, name, number, percent, times

CLOSE = 0.03  # a smaller difference in speed is not worth a word
# Settings that change what is learnt, so that accuracy is not expected to be the same.
LEARNING = (
    "model", "data", "global_batch", "epochs", "steps", "lr", "momentum", "weight_decay", "precision", "seed",
    "lr_scaling", "lr_warmup_epochs", "schedule", "clip_norm", "sync_batch_norm",
)  # fmt: skip


def reading(comparison) -> list:
    """(sentence, run_id) pairs: the first run, then each other run against it."""
    rows = comparison.rows()
    base = rows[0]
    said = [(_first(base), base["run_id"])]
    for record, row in zip(comparison.records[1:], rows[1:], strict=True):
        if row["status"] != "completed":
            sentences = [f"{_name(row)} has no numbers to compare, its run {_ended(row)}."]
        else:
            sentences = [
                _step(row, base), _whole_run(row, base, record, comparison.baseline), _prediction(row),
                _accuracy(row, base), _why(row, base, record["config"], comparison.baseline["config"]),
                f"{_name(row)}: {clean(row['note'])}." if row["note"] else "",
            ]  # fmt: skip
        known = {sentence for sentence, _ in said}  # one explanation is enough for all runs it holds for
        said += [(sentence, row["run_id"]) for sentence in sentences if sentence and sentence not in known]
    return said


def _first(row):
    told = f"{_called(row)} is what the others are compared with"
    if row["step_time_s"]:
        low, middle, high = (number(1000 * row[f"step_time_{key}s"]) for key in ("q1_", "", "q3_"))
        speed = f"{number(row['images_per_s'])} images/s"
        told += f": {middle} ms a step (middle half {low} to {high} ms), {speed}"
    else:
        told += "; it had too few steps to time"
    if row["accuracy"] is not None:
        told += f", accuracy {percent(row['accuracy'])} of {row['test_images']} test images"
    return told[0].upper() + told[1:] + "."


def _step(row, base):
    speed = row["speed_up"]
    if not speed:
        return f"{_name(row)} or {_called(base)} had too few steps to time."
    unit = "a step" if row["global_batch"] == base["global_batch"] else "an image"
    spread = f"middle half {times(row['speed_up_q1'])} to {times(row['speed_up_q3'])}"
    if abs(speed - 1) <= CLOSE:
        return f"{_name(row)} took about {_called(base)}'s time {unit} ({times(speed)}, {spread})."
    if overlap(row, base):
        return (
            f"{_name(row)} made no difference beyond the noise: {times(speed)} {_called(base)}'s speed {unit} "
            f"({spread}), and the middle halves of their steps overlap."
        )
    took = "took" if speed > 1 else "was slower: it took"
    share = f"{number(1 / speed, 2)} {'of' if speed > 1 else 'times'} {_called(base)}'s time"
    told = f"{_name(row)} {took} {share} {unit} ({times(speed)}, {spread})"
    if row["devices"] > 1 == base["devices"] and row["efficiency"]:
        told += f", where {row['devices']}× would be ideal: an efficiency of {percent(row['efficiency'])}"
    return told + "."


def overlap(row, other) -> bool:
    """Whether the middle halves of two runs' speed-ups overlap: then nothing can be said of which is faster."""
    return row["speed_up_q1"] <= other["speed_up_q3"] and other["speed_up_q1"] <= row["speed_up_q3"]


def _whole_run(row, base, record, baseline):
    """A faster step in a slower run helps nobody, so the whole run has its sentence, if both trained as long."""
    whole, speed = row["whole_run_speed_up"], row["speed_up"]
    seen = [one["config"]["global_batch"] * one["measured"]["steps"] for one in (record, baseline)]
    if not whole or not speed or abs(seen[0] - seen[1]) > CLOSE * max(seen):
        return ""
    seconds, base_seconds = (f"{number(run['total_s'])} s" for run in (row, base))
    told = f"The whole run of {_name(row)} took {seconds}, that of {_called(base)} {base_seconds}"
    told += f" ({times(whole)})"
    trap = whole < 1 - CLOSE and speed > 1 + CLOSE
    if not trap and (speed < 1 + CLOSE or whole > speed * (1 - CLOSE)):
        return told + "."
    others = {part: spent for part, spent in wall_time(record).items() if part != "steps"}
    most = max(others, key=others.get)
    told += ": slower, although its steps were faster" if trap else ": less was gained than in a step"
    rest = f"{number(sum(others.values()), 2)} s of it were not timed steps"
    return f"{told}. {rest}, most of that {most} ({number(others[most], 2)} s)."


def _prediction(row):
    predicted, measured = row["predicted"], row["speed_up"]
    if not predicted or not measured:
        return ""
    told = f"{times(predicted)} was predicted for {_name(row)} and {times(measured)} measured: "
    told += "the prediction was "
    ratio = predicted / measured
    if abs(ratio - 1) <= 0.05:
        return told + "right within 5%."
    if ratio >= 2:
        return told + f"{number(ratio, 2)} times what was measured."
    return told + f"{abs(ratio - 1):.0%} too {'high' if ratio > 1 else 'low'}."


def _accuracy(row, base):
    if row["accuracy"] is None or base["accuracy"] is None:
        if row["final_loss"] is None or base["final_loss"] is None:
            return ""
        losses = f"{number(row['final_loss'])}, that of {_called(base)} {number(base['final_loss'])}"
        return f"Accuracy was not measured on both; the final loss of {_name(row)} is {losses}."
    of = f"of {row['test_images']} test images"
    if row["accuracy"] == base["accuracy"]:
        return f"{_name(row)} is as accurate as {_called(base)}: {percent(row['accuracy'])} {of}."
    points = 100 * (row["accuracy"] - base["accuracy"])
    told = f"{_name(row)} classifies {percent(row['accuracy'])} {of} correctly"
    difference = f"{abs(points):.1f} points {'more' if points > 0 else 'less'}"
    return f"{told}, {_called(base)} {percent(base['accuracy'])} ({difference})."


def _why(row, base, config, base_config):
    """Why two runs that were meant to learn the same differ in accuracy, if they do."""
    if None in (row["accuracy"], base["accuracy"]) or row["accuracy"] == base["accuracy"]:
        return ""
    other = [key for key in LEARNING if config.get(key) != base_config.get(key)]
    if other:
        return f"Accuracy may differ because {_name(row)} and {_called(base)} differ in {', '.join(other)}."
    reason = "sums are rounded in another order, and training makes such differences grow"
    if row["local_batch"] != base["local_batch"] and not config.get("sync_batch_norm"):
        reason = (
            "BatchNorm, where the model has it, sees the local batch of its own device and not the global "
            f"batch; besides, {reason}"
        )
    return f"On several devices accuracy can differ because {reason}."


def _ended(row):
    """How a run without numbers ended; of a traceback only the error itself."""
    ended = {"failed": "failed", "stopped": "was stopped"}[row["status"]]
    lines = row["note"].strip().splitlines() or [""]
    errors = [line for line in lines[1:] if re.match(r"[\w.]+(Error|Exception)\b", line)]
    reason = clean((errors or lines[:1])[-1], 160).rstrip(".")
    return f"{ended}: {reason}" if reason else ended


def _called(row):
    return "the baseline" if row["label"] == "baseline" else _name(row)


def _name(row):
    return name({**row, "label": clean(row["label"], 40)})

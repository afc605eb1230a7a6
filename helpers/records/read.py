"""Records read from disk, of this machine and of others, and their numbers.

A file that is not a record is never dropped silently: it is named, with what is wrong with it.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from .. import measure
from ..config import SETTINGS
from ..paths import results_root
from .words import clean

HELD = ("parameters", "gradients", "optimizer state", "activations")  # what a record says of a rank's memory
DEFAULTS = {**{name: setting.default for name, setting in SETTINGS.items()}, "loss": "cross_entropy"}
NO_IDENTITY = ("backend", "threads")  # keys of a record's machine in which two runs on one machine may differ


@dataclass
class Found:
    """Records, the oldest first, each with its "file"; skipped: (file, why) of what is none; places: what was read."""

    records: list = field(default_factory=list)
    skipped: list = field(default_factory=list)
    places: list = field(default_factory=list)


def read(*places) -> Found:
    """All records in folders and files (default: those of this machine), each once.

    A folder is read with all folders in it; if some of these are called "runs", as in a results folder, only they
    are. A file holds one record or, as a study does, a list of them.

    Raises:
        FileNotFoundError: a place does not exist.
    """
    found, known = Found(places=[Path(place) for place in places or (results_root(),)]), {}
    for place in found.places:
        if places and not place.exists():  # without places, nothing may have been recorded yet
            raise FileNotFoundError(f"there is no {place}: give the folder that holds records, or a record's file")
        files = [place] if place.is_file() else sorted(place.rglob("*.json"))
        of_runs = [path for path in files if path.parent.name == "runs"]
        folder = place if place.is_dir() and len(found.places) == 1 else place.parent
        for path in of_runs or files:
            for record in _records(path, clean(path.relative_to(folder).as_posix()), found.skipped):
                known.setdefault(record["run_id"], record)
    found.records = sorted(known.values(), key=lambda record: (record["started"], record["config"]["nproc_per_node"]))
    return found


def _records(path, name, skipped):
    """The records in a file, which is called `name` where it is shown."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        skipped.append((name, clean(f"not readable as JSON: {error}", 160)))
        return
    several = isinstance(content, dict) and isinstance(content.get("records"), list)
    for number, raw in enumerate(content["records"] if several else [content], start=1):
        file = f"{name}, record {number}" if several else name
        try:
            yield {**checked(raw), "file": file}
        except ValueError as error:
            skipped.append((file, str(error)))


def checked(raw) -> dict:
    """A record from a file, with the default of each setting that the kit did not have when it was written.

    Raises:
        ValueError: it is not a record.
    """
    try:
        raw["status"], raw["run_id"], raw["started"], raw["environment"]["machine"]["kind"]
        return {**raw, "config": {**DEFAULTS, **raw["config"]}}
    except (KeyError, TypeError):
        raise ValueError("not a record of a run, or only a part of one") from None


# -- numbers ------------------------------------------------------------------------------


def row(record) -> dict:
    """The numbers of one record that tables and plots are made of; None where a run has none."""
    config, measured = record["config"], record.get("measured", {})
    step, speed = measured.get("step_time_s") or {}, measured.get("images_per_s") or {}
    evaluation, samples = measured.get("evaluation") or {}, measured.get("samples_are", "images")
    held = measured.get("memory_bytes") or [{}]
    low, high = measure.median_interval(measured["samples"]["step_time_s"]) if step else (None, None)
    return {
        **{key: record[key] for key in ("run_id", "label", "status")},
        **{key: config[key] for key in ("strategy", "global_batch", "local_batch")},
        "devices": config["nproc_per_node"] * config.get("nnodes", 1),
        "hosts": config.get("nnodes", 1),
        "step_time_s": step.get("median"),
        "step_time_q1_s": step.get("q1"),
        "step_time_q3_s": step.get("q3"),
        "step_time_low_s": low,
        "step_time_high_s": high,
        "images_per_s": speed.get("median"),
        "samples_are": samples,
        "final_loss": measured.get("final_loss"),
        "accuracy": evaluation.get("accuracy"),
        "tested": evaluation.get("answers") or evaluation.get("count"),
        "tested_are": "tokens" if samples == "sequences" and evaluation.get("answers") else samples,
        "peak_memory_bytes": _most(measured.get("peak_memory_bytes") or ()),
        **{f"{kind.replace(' ', '_')}_bytes": _most(of_rank.get(kind) for of_rank in held) for kind in HELD},
        **{f"{part}_s": seconds for part, seconds in measured.get("parts_s", {}).items()},
        "total_s": record.get("total_s"),
    }


def in_a_line(record) -> str:
    """What came of a run: its numbers, or what ended it."""
    if record["status"] != "completed":
        return f"{record['label']}: {record['error']}"
    values, parts = row(record), ["too few steps to time"]
    if values["step_time_s"]:
        rate = f"{values['images_per_s']:.0f} {values['samples_are']}/s"
        parts = [f"{values['step_time_s'] * 1000:.1f} ms a step", rate]
    final = values["final_loss"]
    parts.append("nothing left to train" if final is None else f"loss {final:.4f}")
    if values["accuracy"] is not None:
        parts.append(f"accuracy {values['accuracy']:.1%} of {values['tested']} {values['tested_are']}")
    return f"{values['label']}: {', '.join(parts)}"


def _most(values):
    return max((value for value in values if value is not None), default=None)


def machine_identity(record) -> dict:
    """All that a record knows of its machine, but for a run's own choices; what is missing equals nothing known."""
    return {key: value for key, value in record["environment"]["machine"].items() if key not in NO_IDENTITY}


def merged(records) -> list:
    """The rounds of each label merged into one record, in the order of first appearance.

    Steps of all rounds become one sample; wall times are the mean of the rounds; losses and accuracy are the first
    round's, since every round trains the same. A round that did not complete stands for its label.
    """
    rounds = {}
    for record in records:
        rounds.setdefault(record["label"], []).append(record)
    return [_one_of(of_label) for of_label in rounds.values()]


def _one_of(rounds):
    broken = [record for record in rounds if record["status"] != "completed"]
    if broken or len(rounds) == 1:
        return (broken or rounds)[0]
    first, parts = rounds[0], [record["measured"] for record in rounds]
    names = ("step_time_s", "input_wait_s")
    samples = {name: [value for measured in parts for value in measured["samples"][name]] for name in names}
    together = {**first["measured"], "samples": {**first["measured"]["samples"], **samples}}
    together["rounds_s"] = [measured["samples"]["step_time_s"] for measured in parts]
    if len(samples["step_time_s"]) >= measure.AT_LEAST:
        rates = [first["config"]["global_batch"] / seconds for seconds in samples["step_time_s"]]
        together |= {name: measure.summary(values) for name, values in {"images_per_s": rates, **samples}.items()}
    names = dict.fromkeys(name for measured in parts for name in measured["parts_s"])
    together["parts_s"] = {name: fmean(measured["parts_s"].get(name, 0.0) for measured in parts) for name in names}
    total = fmean(record["total_s"] for record in rounds)
    return {**first, "measured": together, "total_s": total, "rounds": [record["run_id"] for record in rounds]}


def time_to_accuracy(record, target) -> float | None:
    """Seconds of training until the first evaluation with an accuracy of `target` (0 to 1) or more, or None.

    The time is as fine as the evaluations are apart (RunConfig's `evaluate_every`); starting, loading data and
    evaluating are not counted.

    Raises:
        ValueError: the run did not record accuracy on the way.
    """
    curve = (record.get("measured") or {}).get("curve")
    if not curve:
        raise ValueError(f"run {record['label']!r} has no accuracy on the way; train it with evaluate_every=1")
    return next((point["train_s"] for point in curve if point["accuracy"] >= target), None)

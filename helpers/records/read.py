"""Records read from disk, of this machine and of others, and their numbers.

A file that is not a record is never dropped silently: it is named, with what is wrong with it.
"""

import json
import statistics
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from .. import measure
from ..config import SETTINGS
from ..paths import results_root
from .store import STATUSES
from .words import clean

HELD = ("parameters", "gradients", "optimizer state", "activations")  # what a record says of a rank's memory
DEFAULTS = {**{name: setting.default for name, setting in SETTINGS.items()}, "loss": "cross_entropy"}
NO_IDENTITY = ("backend", "threads")  # keys of a record's machine in which two runs on one machine may differ


@dataclass
class Found:
    """Records, and the files that are none.

    Attributes:
        records: oldest first; "file" is the file's path in the folder that was read.
        skipped: (file, why) of what is not a record.
        places: the folders and files that were read.
    """

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
        for path in [place] if place.is_file() else _files(place):
            several = len(found.places) > 1 or place.is_file()
            name = clean(path.relative_to(place.parent if several else place).as_posix())
            for where, raw in _contents(path, name, found.skipped):
                try:
                    record = {**checked(raw), "file": where}
                except ValueError as error:
                    found.skipped.append((where, str(error)))
                    continue
                first = known.setdefault(record["run_id"], record)
                if {**first, "file": where} != record:
                    why = f"another record with the id {clean(record['run_id'], 60)} was read before"
                    found.skipped.append((where, why))
    found.records = sorted(known.values(), key=lambda record: (record["started"], record["config"]["nproc_per_node"]))
    return found


def read_all(root=None) -> list:
    """The records in the results folder `root`, oldest first; a warning names each file that is not a record."""
    runs = Path(root or results_root()) / "runs"
    found = read(runs) if runs.is_dir() else Found()
    for file, why in found.skipped:
        warnings.warn(f"{runs / file} is not a readable record ({why}); left out", stacklevel=2)
    return found.records


def _files(folder):
    found = sorted(path for path in folder.rglob("*.json") if not path.name.startswith("."))
    return [path for path in found if path.parent.name == "runs"] or found


def _contents(path, name, skipped):
    """(where, record) of all records in a file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        skipped.append((name, clean(f"not readable as JSON: {error}", 160)))
        return []
    if isinstance(content, dict) and isinstance(content.get("records"), list):
        return [(f"{name}, record {place}", raw) for place, raw in enumerate(content["records"], 1)]
    return [(name, content)]


def checked(raw) -> dict:
    """A record from a file, with the default of each setting that the kit did not have when it was written.

    Raises:
        ValueError: it is not a record.
    """
    try:
        sound = raw["status"] in STATUSES and raw["run_id"] and raw["started"] and raw["environment"]["machine"]["kind"]
        measured = raw["measured"]["samples"] if raw["status"] == "completed" else {}
        if not sound or not isinstance(measured, dict):
            raise TypeError
        return {**raw, "config": {**DEFAULTS, **raw["config"]}}
    except (KeyError, TypeError):
        raise ValueError("not a record of a run, or only a part of one") from None


# -- numbers ------------------------------------------------------------------------------


def row(record) -> dict:
    """The numbers of one record that tables and plots are made of; None where a run has none."""
    config, measured = record["config"], record.get("measured", {})
    step, speed = measured.get("step_time_s") or {}, measured.get("images_per_s") or {}
    evaluation = measured.get("evaluation") or {}
    peaks = measured.get("peak_memory_bytes") or [None]
    held = measured.get("memory_bytes") or [{}]
    samples = measured.get("samples_are", "images")
    return {
        "run_id": record["run_id"],
        "label": record["label"],
        "status": record["status"],
        "strategy": config["strategy"],
        "devices": config["nproc_per_node"] * config.get("nnodes", 1),
        "hosts": config.get("nnodes", 1),
        "global_batch": config["global_batch"],
        "local_batch": config["local_batch"],
        "step_time_s": step.get("median"),
        "step_time_q1_s": step.get("q1"),
        "step_time_q3_s": step.get("q3"),
        "images_per_s": speed.get("median"),
        "samples_are": samples,
        "final_loss": measured.get("final_loss"),
        "accuracy": evaluation.get("accuracy"),
        "tested": evaluation.get("answers") or evaluation.get("count"),
        "tested_are": "tokens" if samples == "sequences" and evaluation.get("answers") else samples,
        "peak_memory_bytes": _most(peaks),
        **{f"{kind.replace(' ', '_')}_bytes": _most(of_rank.get(kind) for of_rank in held) for kind in HELD},
        **{f"{part}_s": seconds for part, seconds in measured.get("parts_s", {}).items()},
        "total_s": record.get("total_s"),
    }


def _most(values):
    return max((value for value in values if value is not None), default=None)


def machine_identity(record) -> dict:
    """What tells the machine of a record from others: all that `device.Machine` records, but for a run's own choices.

    What an older version did not record is missing: unknown, and never equal to what is known.
    """
    return {key: value for key, value in record["environment"]["machine"].items() if key not in NO_IDENTITY}


def merged(records) -> list:
    """The rounds of each label merged into one record, in the order of first appearance.

    Steps of all rounds become one sample; wall times are the mean of the rounds; losses and accuracy
    are the first round's, since every round trains the same. A label with a round that did not
    complete is represented by that round.
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
    samples = {
        name: [value for measured in parts for value in measured["samples"][name]]
        for name in ("step_time_s", "input_wait_s")
    }
    together = {**first["measured"], "samples": {**first["measured"]["samples"], **samples}}
    together["rounds_s"] = [measured["samples"]["step_time_s"] for measured in parts]
    if len(samples["step_time_s"]) >= measure.AT_LEAST:
        rates = [first["config"]["global_batch"] / seconds for seconds in samples["step_time_s"]]
        together.update(images_per_s=measure.summary(rates))
        together.update({name: measure.summary(values) for name, values in samples.items()})
    together["parts_s"] = {
        name: statistics.mean(measured["parts_s"].get(name, 0.0) for measured in parts)
        for name in dict.fromkeys(name for measured in parts for name in measured["parts_s"])
    }
    total = statistics.mean(record["total_s"] for record in rounds)
    return {**first, "measured": together, "total_s": total, "rounds": [record["run_id"] for record in rounds]}


def time_to_accuracy(record, target) -> float | None:
    """Seconds of training until the first evaluation with at least the accuracy `target` (0 to 1).

    None if no evaluation of the run reached it. The time is as fine as the evaluations are apart
    (RunConfig's `evaluate_every`); starting, loading data and evaluating are not counted.

    Raises:
        ValueError: the run did not record accuracy on the way.
    """
    curve = (record.get("measured") or {}).get("curve")
    if not curve:
        raise ValueError(f"run {record['label']!r} has no accuracy on the way; train it with evaluate_every=1")
    return next((point["train_s"] for point in curve if point["accuracy"] >= target), None)

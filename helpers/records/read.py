"""Records read from disk, of this machine and of others: checked, brought to today's shape, and their numbers.

A file that is not a record is never dropped silently: it is named, with what is wrong with it.
"""

import json
import math
import os
import statistics
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from .. import measure
from ..config import SETTINGS
from ..paths import results_root
from .store import SCHEMA, STATUSES
from .words import clean

MAX_BYTES = 50_000_000  # a record has tens of kilobytes; something far larger is something else
HELD = ("parameters", "gradients", "optimizer state", "activations")  # what a record says of a rank's memory
AMOUNTS = ("step_time_s", "images_per_s")  # of the measurements, those whose numbers are checked
NOTHING_MEASURED = {
    "note": "",
    "first_step": 0,
    "steps": 0,
    "step_time_s": None,
    "images_per_s": None,
    "input_wait_s": None,
    "curve": [],
    "final_loss": None,
    "evaluation": None,
    "peak_memory_bytes": [],
    "memory_bytes": [],
    "parts_s": {},
    "compiler": None,
    "world_size": 1,
    "epochs": [],
    "skipped_steps": 0,
    "samples_are": "images",
}
DEFAULTS = {**{name: setting.default for name, setting in SETTINGS.items()}, "loss": "cross_entropy"}


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

    A folder is read with all folders in it; where one of these is called "runs", as in a results folder, only that
    one is. A file holds one record or, as a study does, a list of them.

    Raises:
        FileNotFoundError: a place does not exist.
    """
    found = Found(places=[Path(place) for place in places or (results_root(),)])
    known = {}
    for place in found.places:
        if not place.exists():
            if not places:  # nothing was recorded here yet
                continue
            raise FileNotFoundError(f"there is no {place}: give the folder that holds records, or a record's file")
        several = f"{place.name}/" if len(found.places) > 1 and not place.is_file() else ""
        for path, name in _files(place):
            _take(path, clean(several + name), found, known)
    found.records.sort(key=lambda record: known[record["run_id"]][1])
    return found


def read_all(root=None) -> list:
    """The records in the results folder `root`, oldest first; a warning names each file that is not a record."""
    runs = Path(root or results_root()) / "runs"
    found = read(runs) if runs.is_dir() else Found()
    for file, why in found.skipped:
        warnings.warn(f"{runs / file} is not a readable record ({why}); left out", stacklevel=2)
    return found.records


# -- files --------------------------------------------------------------------------------


def _files(place):
    """(path, name in the folder) of all files of a place that may hold records."""
    if place.is_file():
        return [(place, place.name)]
    found = []
    for here, folders, names in os.walk(place):
        folders[:] = ["runs"] if "runs" in folders else sorted(name for name in folders if name[0] != ".")
        if "runs" not in folders:
            paths = [Path(here, name) for name in sorted(names) if name.endswith(".json") and name[0] != "."]
            found += [(path, path.relative_to(place).as_posix()) for path in paths]
    return found


def _take(path, name, found, known):
    """Read a file into `found`; `known` is {run_id: (record, what records are sorted by)}."""
    try:
        about = path.stat()
        if about.st_size > MAX_BYTES:
            raise ValueError(f"{about.st_size:,} bytes are too many for a record")
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        found.skipped.append((name, _reason(error)))
        return
    several = isinstance(content, dict) and isinstance(content.get("records"), list)
    for place, raw in enumerate(content["records"] if several else [content], 1):
        where = f"{name}, record {place}" if several else name
        try:
            record = upgraded(raw)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            found.skipped.append((where, _reason(error)))
            continue
        order = str(record["started"]), record["config"]["nproc_per_node"], about.st_mtime_ns
        other, _ = known.setdefault(record["run_id"], (record, order))
        record["file"] = other.get("file", where)  # so that two are equal if all else is
        if other is record:
            found.records.append(record)
        elif other != record:
            found.skipped.append((where, f"another record with the id {clean(record['run_id'], 60)} was read before"))


def _reason(error):
    if isinstance(error, UnicodeDecodeError):
        return "not a text in UTF-8"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON, or only a part of it: {clean(error, 100)}"
    return clean(error.args[0] if isinstance(error, ValueError) and error.args else repr(error), 160)


# -- today's shape ------------------------------------------------------------------------


def upgraded(raw) -> dict:
    """A record in today's shape: settings and measurements that older versions did not have are filled in.

    Raises:
        ValueError: it is not a record, or lacks what cannot be filled in.
    """
    if not isinstance(raw, dict) or not isinstance(raw.get("run_id"), str) or "config" not in raw:
        raise ValueError("not a record of a run: it has no run_id and config")
    if raw.get("schema", 1) not in range(1, SCHEMA + 1):
        raise ValueError(f"its schema is {raw['schema']!r}, and this version of the kit knows {SCHEMA}")
    if raw.get("status") not in STATUSES:
        raise ValueError(f"its status is {clean(raw.get('status'), 40)!r}")
    machine = (raw.get("environment") or {}).get("machine") or {}
    if not isinstance(machine.get("kind"), str):
        raise ValueError("it does not say on which machine it was made")
    machine = {"name": machine["kind"], "count": 1, "cores": 1, "threads": 1, **machine}
    around = {"versions": {}, "system": "", "code": {}, **raw["environment"], "machine": machine}
    config = _config(raw["config"])
    record = {"group": "", "started": "", "error": None, "prediction": None, "schema": 1, **raw}
    record.update(config=config, environment=around, label=str(raw.get("label") or config["label"]))
    if record["status"] == "completed":
        _amount(raw.get("total_s"), "total_s")
        record["measured"] = _measured(raw.get("measured"))
    return record


def _config(raw):
    config = {**DEFAULTS, **raw}
    for name in ("nproc_per_node", "global_batch"):
        if isinstance(config[name], bool) or not isinstance(config[name], int) or config[name] < 1:
            raise ValueError(f"its {name!s} is {clean(config[name], 40)!r}")
    share = config["nproc_per_node"] * (config.get("nnodes") or 1) * (config["accumulation"] or 1)
    config["local_batch"] = config["local_batch"] or max(1, config["global_batch"] // share)
    config["label"] = config["label"] or f"{config['strategy']} ×{config['nproc_per_node']}"
    return config


def _measured(raw):
    if not isinstance(raw, dict):
        raise ValueError("it says that it completed, but not what was measured")
    measured = {**NOTHING_MEASURED, **raw}
    for name in AMOUNTS:
        for key in ("median", "q1", "q3") if measured[name] else ():
            _amount(measured[name][key], f"{name}, {key},")
    for name in ("parts_s", "epochs", "curve", "peak_memory_bytes", "memory_bytes"):
        measured[name] = measured[name] or type(NOTHING_MEASURED[name])()
    samples = {"step_time_s": [], "input_wait_s": [], "loss": [], **(measured.get("samples") or {})}
    return {**measured, "samples": samples}


def _amount(value, name):
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"its {name!s} is {clean(value, 40)!r}, which no run can take")


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
        "steps_timed": step.get("n"),
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


def merged(records) -> list:
    """One record a label, in the order of first appearance: the rounds of a run put together.

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

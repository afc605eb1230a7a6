"""What a run leaves behind: one JSON file, written whole or not at all."""

import hashlib
import json
import platform
import secrets
import statistics
import subprocess
import time
import warnings
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .. import measure
from ..paths import project_root, replace_file, results_root

SCHEMA = 1
STATUSES = ("completed", "failed", "stopped")
FACE = (
    "__", "cable", "check/", "cli", "cost", "drawing", "form", "hosts", "live", "op_", "plots", "reading", "report",
    "seeds", "show", "stud", "style", "torchrun", "twohosts", "watch", "xla/calls",
)  # fmt: skip


def new_record(config, machine, group="", launch=None) -> dict:
    """The record of a run that is about to start; `group` names the comparison it belongs to.

    `launch` is what `group.agent` gives: attempts of one launch have one record, that of the last.
    """
    started, token = launch or (time.time(), secrets.token_hex(3))
    now = time.strftime("%Y%m%d-%H%M%S", time.localtime(started))
    name = f"{config.strategy}-{config.devices}"
    return {
        "schema": SCHEMA,
        "run_id": f"{now}-{name}-{token}",
        "group": group,
        "label": config.label,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(started)),
        "status": "failed",  # until it is known better
        "error": None,
        "config": config.as_dict(),
        "environment": {"machine": machine.as_dict(), **surroundings()},
    }


def write(record, root=None) -> Path:
    """Save a record as `<root>/runs/<run_id>.json`; nobody ever sees half a file."""
    folder = Path(root or results_root()) / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{record['run_id']}.json"
    replace_file(path, json.dumps(record, indent=1))
    return path


def read_all(root=None, group=None) -> list:
    """All records below `root`, oldest first; unreadable files are named in a warning and left out."""
    records = []
    for path in sorted((Path(root or results_root()) / "runs").glob("*.json"), key=_when):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["schema"] != SCHEMA or record["status"] not in STATUSES:
                raise ValueError(f"schema {record['schema']}, status {record['status']!r}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            warnings.warn(f"{path} is not a readable record ({error}); left out", stacklevel=2)
            continue
        if group is None or record["group"] == group:
            records.append(record)
    return records


def _when(path):
    """Their names tell the second, the files which of one second was written first."""
    try:
        return path.name[: len("20260101-000000")], path.stat().st_mtime_ns, path.name
    except OSError:  # removed just now
        return path.name, 0, path.name


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
    if len(samples["step_time_s"]) >= measure.AT_LEAST:
        rates = [first["config"]["global_batch"] / seconds for seconds in samples["step_time_s"]]
        together.update(images_per_s=measure.summary(rates))
        together.update({name: measure.summary(values) for name, values in samples.items()})
    together["parts_s"] = {
        name: statistics.mean(measured["parts_s"][name] for measured in parts) for name in parts[0]["parts_s"]
    }
    total = statistics.mean(record["total_s"] for record in rounds)
    return {**first, "measured": together, "total_s": total, "rounds": [record["run_id"] for record in rounds]}


def frame(records):
    """Records as a pandas DataFrame, a row a run (times in seconds, memory in bytes)."""
    import pandas

    return pandas.DataFrame([row(record) for record in records])


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


def row(record) -> dict:
    """The numbers of one record that tables and plots are made of; None where a run has none."""
    config, measured = record["config"], record.get("measured", {})
    step, speed = measured.get("step_time_s") or {}, measured.get("images_per_s") or {}
    evaluation = measured.get("evaluation") or {}
    peaks = measured.get("peak_memory_bytes") or [None]
    return {
        "run_id": record["run_id"], "label": record["label"], "status": record["status"],
        "strategy": config["strategy"], "devices": config["nproc_per_node"] * config.get("nnodes", 1),
        "hosts": config.get("nnodes", 1),
        "global_batch": config["global_batch"], "local_batch": config["local_batch"],
        "step_time_s": step.get("median"), "step_time_q1_s": step.get("q1"), "step_time_q3_s": step.get("q3"),
        "steps_timed": step.get("n"), "images_per_s": speed.get("median"),
        "final_loss": measured.get("final_loss"), "accuracy": evaluation.get("accuracy"),
        "test_images": evaluation.get("count"),
        "peak_memory_bytes": max((p for p in peaks if p is not None), default=None),
        **{f"{part}_s": seconds for part, seconds in measured.get("parts_s", {}).items()},
        "total_s": record.get("total_s"),
    }  # fmt: skip


@lru_cache
def _versions():
    found = {"python": platform.python_version()}
    for package in ("torch", "torchvision", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def surroundings() -> dict:
    """Versions, operating system, and the state of the code that makes the run."""
    return {"versions": dict(_versions()), "system": platform.platform(), "code": code_state()}


@lru_cache
def code_state() -> dict:
    """Git commit (None outside a clone), whether files differ from it, and hashes of the package.

    `training_sha256` leaves out the modules that only show, check or explain what a run has measured,
    so that it changes when a run might come out differently.
    """
    whole, training, package = hashlib.sha256(), hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        content = path.read_bytes()
        whole.update(content)
        if not path.relative_to(package).as_posix().startswith(FACE):
            training.update(content)
    commit = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return {
        "commit": commit,
        "modified": None if changed is None else bool(changed),
        "helpers_sha256": whole.hexdigest(),
        "training_sha256": training.hexdigest(),
    }


def _git(*arguments):
    try:
        done = subprocess.run(
            ["git", "-C", str(project_root()), *arguments], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()

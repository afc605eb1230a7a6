"""Records found on disk, of this machine and of others: read, checked, brought to today's shape.

Nothing that was found is lost without a word: a file that is no record is named, with what is wrong with it.
"""

import json
import math
import os
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path

from ..config import RunConfig
from ..paths import results_root
from ..words import clean
from . import store

MANY = 1000  # files of a folder, from which on their heads are kept in an index (helpers.records.index)
MAX_BYTES = 50_000_000  # a record has tens of kilobytes; something far larger is something else
AMOUNTS = ("step_time_s", "images_per_s")  # of what was measured, those whose numbers are checked
SUMMARY = ("median", "q1", "q3")
NOTHING_MEASURED = {
    "note": "", "first_step": 0, "steps": 0, "step_time_s": None, "images_per_s": None, "input_wait_s": None,
    "curve": [], "final_loss": None, "evaluation": None, "peak_memory_bytes": [], "parts_s": {}, "compiler": None,
    "world_size": 1, "epochs": [], "skipped_steps": 0,
}  # fmt: skip

DEFAULTS = {f.name: f.default for f in fields(RunConfig) if f.default is not MISSING}


@dataclass
class Found:
    """What was read.

    Attributes:
        records: oldest first; "file" says where in the folder each was.
        skipped: (file, why) of what is no record.
        places: the folders and files that were looked through.
    """

    records: list = field(default_factory=list)
    skipped: list = field(default_factory=list)
    places: list = field(default_factory=list)


def read(*places, many=MANY) -> Found:
    """All records in folders and files (default: those of this machine), each once.

    A folder is looked through with the folders in it; where one of them is called "runs", as in a results
    folder, only that one is. A file holds one record or, as a study does, a list of them. Of a folder with `many` files
    or more, only what is new is read: the rest comes from an index, and what a run measured when it is asked for.

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
        for named, items in _items(place, many):
            _take(clean(several + named), items, found, known)
    found.records.sort(key=_order)
    return found


def _order(record):
    return str(record["started"]), record["config"]["nproc_per_node"], record["run_id"]


def _items(place, many):
    """(name, what `contents` says) of each file of a place."""
    if place.is_file():
        return [(place.name, contents(place))]
    found = list(_files(place))
    if len(found) < many:
        return ((named, contents(path)) for path, named in found)
    from . import index

    return index.read(place, found)


def _files(folder):
    """(path, name in the folder) of all files that may hold records."""
    for here, folders, names in os.walk(folder):
        folders[:] = ["runs"] if "runs" in folders else sorted(name for name in folders if not name.startswith("."))
        if "runs" not in folders:
            inside = "" if here == os.fspath(folder) else Path(here).relative_to(folder).as_posix() + "/"
            names = sorted(name for name in names if name.endswith(".json") and name[0] != ".")
            yield from ((f"{here}{os.sep}{name}", inside + name) for name in names)


def contents(path) -> list:
    """[(record or None, why it is none, its place in the file or None)] of a file, which may hold several."""
    try:
        if os.stat(path).st_size > MAX_BYTES:
            raise ValueError(f"{os.stat(path).st_size:,} bytes are too many for a record")
        with open(path, encoding="utf-8") as file:
            content = json.loads(file.read())
    except (OSError, ValueError, RecursionError) as error:
        return [(None, _reason(error), None)]
    return [checked(raw, place) for place, raw in raws(content)]


def raws(content) -> list:
    """[(place in the file or None, what should be a record)] of what a file holds."""
    several = isinstance(content, dict) and isinstance(content.get("records"), list)
    return list(enumerate(content["records"], 1)) if several else [(None, content)]


def checked(raw, place) -> tuple:
    """(record or None, why it is none, `place`)."""
    try:
        return upgraded(raw), "", place
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return None, _reason(error), place


def _take(named, items, found, known):
    for record, why, place in items:
        where = f"{named}, record {place}" if place else named
        if record is None:
            found.skipped.append((where, why))
            continue
        other = known.setdefault(record["run_id"], record)
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


def upgraded(raw) -> dict:
    """A record in today's shape: what older ones did not say yet is filled in as it was meant.

    Raises:
        ValueError: it is no record, or lacks what cannot be filled in.
    """
    if not isinstance(raw, dict) or not isinstance(raw.get("run_id"), str) or "config" not in raw:
        raise ValueError("not a record of a run: it has no run_id and config")
    if raw.get("schema", 1) not in range(1, store.SCHEMA + 1):
        raise ValueError(f"its schema is {raw['schema']!r}, and this version of the kit knows {store.SCHEMA}")
    if raw.get("status") not in store.STATUSES:
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
            raise ValueError(f"its {name} is {clean(config[name], 40)!r}")
    share = config["nproc_per_node"] * (config.get("nnodes") or 1) * (config["accumulation"] or 1)
    config["local_batch"] = config["local_batch"] or max(1, config["global_batch"] // share)
    config["label"] = config["label"] or f"{config['strategy']} ×{config['nproc_per_node']}"
    return config


def _measured(raw):
    if not isinstance(raw, dict):
        raise ValueError("it says that it completed, but not what was measured")
    measured = {**NOTHING_MEASURED, **raw}
    for name in AMOUNTS:
        for key in SUMMARY if measured[name] else ():
            _amount(measured[name][key], f"{name}, {key},")
    for name in ("parts_s", "epochs", "curve", "peak_memory_bytes"):
        measured[name] = measured[name] or type(NOTHING_MEASURED[name])()
    samples = {"step_time_s": [], "input_wait_s": [], "loss": [], **(measured.get("samples") or {})}
    return {**measured, "samples": samples}


def _amount(value, name):
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"its {name} is {clean(value, 40)!r}, which no run can take")

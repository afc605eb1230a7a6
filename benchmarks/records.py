"""The record of a benchmark, and how far each of its targets is from what was measured."""

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

from helpers import device
from helpers.paths import project_root, replace_file
from helpers.records import store

HOLDS = {"<=": lambda value, goal: value <= goal, ">=": lambda value, goal: value >= goal}
SCHEMA = 1


def kept_folder() -> Path:
    """Folder of the records that docs/project/benchmarks.md is made from."""
    return project_root() / "recorded" / "bench"


def new(name, module, rows, ratios, seconds) -> dict:
    """What `module`, the benchmark called `name`, has measured in `seconds`."""
    targets = getattr(module, "TARGETS", {})
    record = {
        "schema": SCHEMA,
        "benchmark": name,
        "what": module.__doc__.splitlines()[0],
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(time.time() - seconds)),
        "environment": {"machine": device.machine().as_dict(), **store.surroundings()},
        "unit": module.UNIT,
        "rows": rows,
        "ratios": ratios,
        "grid": getattr(module, "GRID", False),
        "targets": {what: list(target) for what, target in targets.items()},
        "seconds": round(seconds, 1),
    }
    for told in ("reasons", "notes"):
        tell = getattr(module, told, None)
        record[told] = tell(rows, ratios) if tell else type(DEFAULTS[told])()
    return record


DEFAULTS = {"reasons": {}, "notes": [], "targets": {}, "ratios": {}, "grid": False}


def keep(record, folder, label="") -> Path:
    """Write it to `folder` as <benchmark>.json, or <benchmark>-<label>.json where it stands beside another's."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{record['benchmark']}{'-' * bool(label)}{label}.json"
    replace_file(path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return path


def read(folder) -> dict:
    """{name of the file, without .json: record} of all records in `folder`; {} without one."""
    found = {}
    for path in sorted(Path(folder).glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["schema"] != SCHEMA:
            raise ValueError(f"{path} has schema {record['schema']!r}: run `python -m benchmarks --keep` again")
        found[path.stem] = {**DEFAULTS, **record}
    return found


@dataclass(frozen=True)
class Verdict:
    """A target beside what was measured.

    Attributes:
        what: the name of the row or ratio.
        value, low, high: the median, in `unit`, and the ends of a ratio's 95% interval or a row's middle half, or None.
        sign, goal: "<=" or ">=", and the number that was aimed at.
        met: None where nothing was measured.
        why: why it was missed, or not measured.
    """

    benchmark: str
    what: str
    value: float | None
    low: float | None
    high: float | None
    unit: str
    sign: str
    goal: float
    met: bool | None
    why: str

    @property
    def factor(self) -> float | None:
        """How many times better than asked for: 1 is just met, 0.5 half of it; None where no ratio can say so."""
        if self.value is None or self.value <= 0 or self.goal <= 0 or not math.isfinite(self.value):
            return None
        return self.value / self.goal if self.sign == ">=" else self.goal / self.value


def verdicts(record, name=None) -> list:
    """A Verdict for each target of a record, in their order; `name` is what the benchmark is called in them."""
    return [_verdict(record, name or record["benchmark"], what, *target) for what, target in record["targets"].items()]


def _verdict(record, name, what, sign, goal):
    found, unit = record["rows"].get(what), record["unit"]
    if found is None:
        found, unit = record["ratios"].get(what), ""
    if not isinstance(found, dict):
        found = {"median": found}
    value, bad = found.get("median"), found.get("bad")
    low, high = (found.get(end, found.get(quartile)) for end, quartile in (("low", "q1"), ("high", "q3")))
    why, met = record["reasons"].get(what, ""), None
    if bad:
        met, why = False, why or bad
    elif value is not None:
        met = bool(HOLDS[sign](value, goal))  # of a number that is none, no target holds
        why = "" if met else why or "the benchmark does not say why"
    else:
        why = why or "not measured here"
    unit = found.get("unit", unit)
    return Verdict(name, what, value, low, high, unit, sign, goal, met, why)

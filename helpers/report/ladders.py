"""Records sorted: by machine, and on each machine into ladders of runs that may be compared with each other."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import fmean

from ..comparison.comparison import Comparison
from ..plots.style import clean
from ..records import store

APART = ("label", "seed", "checkpoint_dir", "checkpoint_every", "resume")  # not a different training
SHARED = ("input_path", "threads", "device", "epochs", "steps")  # what single runs must share to be compared
ALONE = "single runs"


@dataclass
class Ladder:
    """Runs of one machine that may be compared.

    Attributes:
        name: of the comparison they were made in, or "single runs".
        first: whether the comparison began with the first of these runs.
        runs: the records as they are on disk; `records` has one for each label, its rounds put together, and
            `comparison` that which the others are compared with, or is None. Both are made when they are asked for.
    """

    name: str
    runs: list
    first: bool = True

    @cached_property
    def _compared(self):
        _fill_parts(self.runs)
        together = {}
        for record in _named_apart(self.runs):
            together.setdefault(record["label"], []).append(record)
        records = [_merged(rounds) for rounds in together.values()]
        base = _baseline(records, self.first and self.name != ALONE)
        if base is None:
            return records, None
        records = [base, *(record for record in records if record is not base)]
        return records, Comparison(records)

    @property
    def records(self) -> list:
        """One record for each label."""
        return self._compared[0]

    @property
    def comparison(self) -> Comparison | None:
        """The records beside that which they are compared with."""
        return self._compared[1]

    @property
    def machine(self) -> dict:
        """The machine part of its records."""
        return self.runs[0]["environment"]["machine"]

    @property
    def what(self) -> str:
        """What was trained, such as "resnet8 on digits"."""
        return clean("{model} on {data}".format(**self.runs[0]["config"]), 80)

    @property
    def started(self) -> str:
        """When its first run began."""
        return str(self.runs[0]["started"])

    def rows(self) -> list:
        """Numbers of each run, as Comparison.rows; without a baseline there are no speed-ups."""
        if self.comparison:
            base, *others = self.comparison.rows()
            if base["devices"] > 1:  # then an efficiency would say nothing
                base = {**base, "efficiency": None}
            more = {row["label"] for row in others if row["devices"] > base["devices"] == 1}
            others = [{**row, "efficiency": row["efficiency"] if row["label"] in more else None} for row in others]
            return [base, *others]
        none = dict.fromkeys(("speed_up", "speed_up_q1", "speed_up_q3", "efficiency", "whole_run_speed_up"))
        return [
            {**store.row(r), **none, "predicted": r["prediction"], "note": _note(r)} for r in self.records
        ]  # fmt: skip


@dataclass
class Site:
    """The ladders of one machine, the newest first."""

    name: str
    ladders: list

    @property
    def records(self) -> list:
        """All runs of this machine as they are on disk."""
        return [record for ladder in self.ladders for record in ladder.runs]


def sites(records) -> list:
    """The machines that records come from, the one with the newest record first, with their ladders.

    Machines are told apart by their devices and cores; a run never stands in a ladder of another machine.
    """
    found, named = {}, {}
    for record in records:
        machine = record["environment"]["machine"]
        key = named.get(id(machine)) or named.setdefault(id(machine), (machine_name(record), machine["kind"]))
        found.setdefault(key, []).append(record)
    newest = sorted(found.values(), key=lambda of_one: str(of_one[-1]["started"]), reverse=True)
    return [Site(machine_name(of_one[0]), _ladders(of_one)) for of_one in newest]


def machine_name(record) -> str:
    """A machine in a few words, such as "AMD EPYC, 2 cores" or "4 × NVIDIA H200"."""
    machine = record["environment"]["machine"]
    return _machine_name(str(machine["name"]), machine["kind"], str(machine["cores"]), str(machine["count"]))


@lru_cache
def _machine_name(name, kind, cores, count):
    name = clean(name, 60)
    if kind == "cpu":
        return f"{name}, {cores} core{'s' * (cores != '1')}"
    return f"{count} × {name}"


def _ladders(records):
    found, settings = {}, {}
    for record in records:
        config, group = record["config"], record["group"]
        if id(config) not in settings:  # very many records share few
            what = [config["model"], config["data"]]
            settings[id(config)] = str(what), str(what + [config[name] for name in SHARED])
        found.setdefault((group, settings[id(config)][not group]), []).append(record)
    began = {record["group"]: record["run_id"] for record in reversed(records)}
    made = [
        Ladder(runs[0]["group"] or ALONE, runs, runs[0]["run_id"] == began[runs[0]["group"]])
        for runs in found.values()
    ]  # fmt: skip
    return sorted(made, key=lambda ladder: ladder.started, reverse=True)


def _fill_parts(runs):
    """Give all runs the same parts of wall time, so that rounds can be put together."""
    measured = [record["measured"] for record in runs if record["status"] == "completed"]
    parts = dict.fromkeys(part for one in measured for part in one["parts_s"])
    for one in measured:
        one["parts_s"] = {part: one["parts_s"].get(part, 0.0) for part in parts}


def _named_apart(runs):
    """The runs; where two of one label were not the same training, the label says what differs."""
    by_label = {}
    for record in runs:
        settings = {key: str(value) for key, value in record["config"].items() if key not in APART}
        kinds = by_label.setdefault(record["label"], [])
        kinds += [settings] * (settings not in kinds)
    for record in runs:
        kinds = by_label[record["label"]]
        keys = dict.fromkeys(key for settings in kinds for key in settings)
        differ = [key for key in keys if len({settings.get(key) for settings in kinds}) > 1]
        if "global_batch" in differ and "local_batch" in differ:
            differ.remove("local_batch")
        told = " · ".join(f"{key} {record['config'].get(key)}" for key in differ)
        yield {**record, "label": " · ".join(filter(None, [record["label"], told]))}


def _merged(rounds):
    """The rounds of one label as one record; seeds give it their mean accuracy."""
    merged = store.merged(rounds)[0]
    if len(rounds) == 1 or merged["status"] != "completed":
        return merged
    found = {r["config"].get("seed"): (r["measured"]["evaluation"] or {}).get("accuracy") for r in rounds}
    if len(found) > 1 and None not in found.values():
        evaluation = {**merged["measured"]["evaluation"], "accuracy": fmean(found.values())}
        evaluation["of_seeds"] = sorted(found.values())
        merged = {**merged, "measured": {**merged["measured"], "evaluation": evaluation}}
    return merged


def _baseline(records, first):
    """The run that the others are compared with: the `first` of a comparison, else the oldest plain one."""
    done = [record for record in records if record["status"] == "completed"]
    if first and records[0] in done:
        return records[0]
    return next((r for r in done if store.row(r)["devices"] == 1 and _is_plain(r["config"])), None)


def _is_plain(config):
    return config["precision"] == "fp32" and config["compiler"] == "none" and not config["channels_last"]


def _note(record):
    return (record.get("measured") or {}).get("note") or record["error"] or ""

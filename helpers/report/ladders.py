"""Records sorted: by machine, and on each machine into ladders of runs that may be compared with each other."""

from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from ..comparison.comparison import Comparison, rows
from ..launcher.language import local, marked
from ..plots.style import clean
from ..records import read
from .pairs import differences

SHARED = ("input_path", "threads", "device", "epochs", "steps")  # what single runs must share to be compared
ALONE = marked("single runs")


@dataclass
class Ladder:
    """Runs of one machine that may be compared.

    Attributes:
        name: of the comparison they were made in, or "single runs".
        runs: the records as they are on disk.
        machine: the name of the machine.
        first: whether the comparison began with the first of these runs.
        records: one record for each label, its rounds put together; the baseline comes first.
        comparison: these beside the run they are compared with; None where there is no such run.
    """

    name: str
    runs: list
    machine: str = ""
    first: bool = True

    @cached_property
    def records(self) -> list:
        together = {}
        for record in _named_apart(self.runs):
            together.setdefault(record["label"], []).append(record)
        records = [_merged(rounds) for rounds in together.values()]
        base = _baseline(records, self.first and self.name != ALONE)
        return sorted(records, key=lambda record: record is not base)

    @cached_property
    def comparison(self) -> Comparison | None:
        base = _baseline(self.records, self.first and self.name != ALONE)
        return base and Comparison(self.records)

    @property
    def what(self) -> str:
        """What was trained, such as "resnet8 on digits"."""
        return clean("{model} on {data}".format(**self.runs[0]["config"]), 80)

    @property
    def called(self) -> str:
        """Its name in the reader's language."""
        return local(ALONE) if self.name == ALONE else clean(self.name)

    @property
    def started(self) -> str:
        """When its first run began."""
        return str(self.runs[0]["started"])

    def rows(self) -> list:
        """Numbers of each run, as Comparison.rows; without a baseline there are no speed-ups."""
        return self._rows

    @cached_property
    def _rows(self):
        found = self.comparison.rows() if self.comparison else rows(self.records, None)
        base = found[0]
        for row in found:  # an efficiency is that of more devices than one
            if base["devices"] > 1 or row is not base and row["devices"] <= 1:
                row["efficiency"] = None
        return found


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

    Records are of one machine if they agree in all of `read.machine_identity`. An old record is never put together
    with a newer one that says more, because nothing says that their machines compute alike. Where two machines have
    one name, what tells them apart stands behind it.
    """
    found = {}
    for record in records:
        found.setdefault(str(sorted(read.machine_identity(record).items())), []).append(record)
    newest = sorted(found.values(), key=lambda of_one: str(of_one[-1]["started"]), reverse=True)
    names = [machine_name(of_one[0]) for of_one in newest]
    firsts = [of_one[0] for of_one in newest]
    full = [
        f"{n} ({_detail(record, firsts)})" if names.count(n) > 1 else n for n, record in zip(names, firsts, strict=True)
    ]
    return [Site(name, _ladders(of_one, name)) for name, of_one in zip(full, newest, strict=True)]


def machine_name(record) -> str:
    """A machine in a few words, such as "AMD EPYC, 2 cores" or "4 × NVIDIA H200"."""
    machine = record["environment"]["machine"]
    name, cores = clean(machine["name"], 60), str(machine["cores"])
    if machine["kind"] == "cpu":
        return marked(f"{name}, 1 core") if cores == "1" else marked(f"{name}, {cores} cores")
    return f"{machine['count']} × {name}"


def _detail(record, others):
    """What tells a machine from others of its name, such as "instructions avx2, avx512f; bf16 emulated"."""
    mine = read.machine_identity(record)
    others = [read.machine_identity(other) for other in others if machine_name(other) == machine_name(record)]
    apart = [(key, value) for key, value in mine.items() if any(other.get(key) != value for other in others)]
    told = (f"{key} {', '.join(map(str, value)) if isinstance(value, (list, dict)) else value}" for key, value in apart)
    return clean("; ".join(told), 200) or "less recorded"


def _ladders(records, machine):
    found, began = {}, {}
    for record in records:
        config, group = record["config"], record["group"]
        what = [config[name] for name in ("model", "data", *(SHARED if not group else ()))]
        found.setdefault((group, str(what)), []).append(record)
        began.setdefault(group, record["run_id"])
    made = [
        Ladder(group or ALONE, runs, machine, runs[0]["run_id"] == began[group]) for (group, _), runs in found.items()
    ]
    return sorted(made, key=lambda ladder: ladder.started, reverse=True)


def _named_apart(runs):
    """The runs; where two of one label were not the same training, the label says what differs."""
    by_label = {}
    for record in runs:
        by_label.setdefault(record["label"], []).append(record)
    apart = {label: _changed(same) for label, same in by_label.items()}
    for record in runs:
        told = " · ".join(f"{name} {record['config'].get(name)}" for name in apart[record["label"]])
        yield {**record, "label": " · ".join(filter(None, [record["label"], told]))}


def _changed(records):
    """Names of the settings that make different trainings of these records."""
    differ = {one.name: one for other in records for one in differences(other, records[0])}
    names = [name for name, one in differ.items() if one.changes_learning or one.changes_timing]
    return [name for name in names if name != "seed" and not (name == "local_batch" and "global_batch" in names)]


def _merged(rounds):
    """The rounds of one label as one record; seeds give it their mean accuracy."""
    merged = read.merged(rounds)[0]
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
    return next((r for r in done if read.row(r)["devices"] == 1 and _is_plain(r["config"])), None)


def _is_plain(config):
    return config["precision"] == "fp32" and config["compiler"] == "none" and not config["channels_last"]

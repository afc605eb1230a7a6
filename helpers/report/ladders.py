"""Records sorted: by machine, and on each machine into ladders of runs that may be compared with each other."""

from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from ..comparison.comparison import Comparison, rows
from ..config import SETTINGS
from ..language import _
from ..plots import seeds
from ..plots.style import clean
from ..records import read

TRAINING = [name for name, one in SETTINGS.items() if (one.changes_learning or one.changes_timing) and name != "seed"]
SHARED = ("input_path", "threads", "device", "epochs", "steps")  # what single runs must share to be compared
PLAIN = {"precision": "fp32", "compiler": "none", "channels_last": False}  # settings of a baseline


@dataclass
class Ladder:
    """Runs of one machine that may be compared: the comparison `name`, or "single runs" in the reader's language.

    `runs` are the records as they are on disk, and `first` says whether the comparison began with the first of them.
    """

    name: str
    runs: list
    first: bool = True

    @cached_property
    def records(self) -> list:
        """One record for each label, its rounds put together; the baseline comes first."""
        together = {}
        for record in self.runs:
            together.setdefault(training(record), []).append(record)
        records = [_merged(rounds) for rounds in together.values()]
        records = [{**record, "label": _named_apart(record, records)} for record in records]
        base = self._baseline(records)
        return sorted(records, key=lambda record: record is not base)

    @cached_property
    def comparison(self) -> Comparison | None:
        """These beside the run they are compared with; None where there is no such run."""
        return self._baseline(self.records) and Comparison(self.records)

    def _baseline(self, records):
        """The run that the others are compared with: the first of a comparison, else the oldest plain one."""
        done = [record for record in records if record["status"] == "completed"]
        if self.first and records[0] in done:
            return records[0]
        return next((r for r in done if read.row(r)["devices"] == 1 and PLAIN.items() <= r["config"].items()), None)

    @property
    def what(self) -> str:
        """What was trained, such as "resnet8 on digits"."""
        return clean(_("{model} on {data}").format(**self.runs[0]["config"]), 80)

    def rows(self) -> list:
        """Numbers of each run, as Comparison.rows; without a baseline there are no speed-ups."""
        return self.comparison.rows() if self.comparison else rows(self.records, None)

    def curves(self) -> dict:
        """{label: the runs that recorded accuracy on the way}, the oldest first; {} if there are none."""
        groups = {}
        for record in self.runs:
            if seeds.curve(record):
                groups.setdefault(record["label"], []).append(record)
        return groups


@dataclass
class Machine:
    """The ladders of one machine, the newest first."""

    name: str
    ladders: list

    @property
    def records(self) -> list:
        """All runs of this machine as they are on disk."""
        return [record for ladder in self.ladders for record in ladder.runs]


def machines(records) -> list:
    """The machines that records come from, the one with the newest record first, with their ladders.

    Records are of one machine if they agree in all of `read.machine_identity`. Where two machines have one name, what
    tells them apart stands behind it.
    """
    found = {}
    for record in records:
        found.setdefault(str(sorted(read.machine_identity(record).items())), []).append(record)
    newest = sorted(found.values(), key=lambda of_one: str(of_one[-1]["started"]), reverse=True)
    firsts = [of_one[0] for of_one in newest]
    return [Machine(_apart(first, firsts), _ladders(of_one)) for first, of_one in zip(firsts, newest, strict=True)]


def machine_name(record) -> str:
    """A machine in a few words, such as "AMD EPYC, 2 cores" or "4 × NVIDIA H200"."""
    machine = record["environment"]["machine"]
    name, cores = clean(machine["name"], 60), str(machine["cores"])
    if machine["kind"] != "cpu":
        return f"{machine['count']} × {name}"
    return (_("{name}, 1 core") if cores == "1" else _("{name}, {cores} cores")).format(name=name, cores=cores)


def ids(*records) -> tuple:
    """The ids of records, with those of all rounds that were put together in them."""
    return tuple(dict.fromkeys(run for record in records for run in record.get("rounds") or [record["run_id"]]))


def training(record) -> str:
    """What two records have in common that are rounds, or seeds, of the same run."""
    return str([record["label"], *(record["config"].get(name) for name in TRAINING)])


def timed(record) -> bool:
    """Whether it completed and had enough steps to time."""
    return record["status"] == "completed" and bool(record["measured"]["images_per_s"])


def _apart(record, others):
    """A machine's name, and what tells it from others of that name, such as "instructions ['avx2']"."""
    name, mine = machine_name(record), read.machine_identity(record)
    others = [read.machine_identity(other) for other in others if machine_name(other) == name]
    apart = [f"{key} {value}" for key, value in mine.items() if any(other.get(key) != value for other in others)]
    return name if len(others) == 1 else f"{name} ({clean('; '.join(apart), 200) or _('less recorded')})"


def _ladders(records):
    found, first = {}, {record["group"]: record for record in reversed(records)}
    for record in records:
        config, group = record["config"], record["group"]
        what = [config[name] for name in ("model", "data", *(SHARED if not group else ()))]
        found.setdefault((group, str(what)), []).append(record)
    made = [
        Ladder(clean(group) or _("single runs"), runs, bool(group) and runs[0] is first[group])
        for (group, _what), runs in found.items()
    ]
    return sorted(made, key=lambda ladder: str(ladder.runs[0]["started"]), reverse=True)


def _named_apart(record, records):
    """Its label; where another record of that label was not the same training, with what differs."""
    twins = [other["config"] for other in records if other["label"] == record["label"]]
    differ = {name for name in TRAINING for config in twins if config.get(name) != record["config"].get(name)}
    return " · ".join([record["label"], *(f"{name} {record['config'].get(name)}" for name in sorted(differ))])


def _merged(rounds):
    """The rounds of one label as one record; seeds give it their mean accuracy."""
    merged = read.merged(rounds)[0]
    if merged["status"] != "completed":
        return merged
    found = {r["config"].get("seed"): (r["measured"]["evaluation"] or {}).get("accuracy") for r in rounds}
    if len(found) > 1 and None not in found.values():
        evaluation = {**merged["measured"]["evaluation"], "accuracy": fmean(found.values())}
        merged = {**merged, "measured": {**merged["measured"], "evaluation": evaluation}}
    return merged

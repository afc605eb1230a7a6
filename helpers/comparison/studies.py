"""Studies: series of runs too long for a notebook, recorded once and kept as data.

A notebook shows a recorded study beside a short form that it runs live, and says which is which.
`python -m benchmarks.studies NAME` records one again on your machine, and the notebooks then show yours.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from ..language import _
from ..paths import project_root, results_root
from ..records import store

REPEATED = {  # a run of each kept study that tests make again: it has to learn as it did when it was recorded
    "batch_and_accuracy": "1 rank",
    "optimizers": "adamw, batch 128, rate 0.004",
    "precision": "baseline",
    "time_to_accuracy": "2 ranks, naive",
    "sharding": "FSDP ×2, full (ZeRO-3)",
}


@dataclass(frozen=True)
class Study:
    """The records of a study; those with one label differ in their seed only."""

    name: str
    records: list
    path: Path

    def groups(self, *labels) -> dict:
        """{label: its records, one a seed}, of the given labels in their order, or of all."""
        found = {}
        for record in self.records:
            found.setdefault(record["label"], []).append(record)
        return {label: found[label] for label in labels or found}

    def one(self, label) -> dict:
        """The first record with this label."""
        return self.groups(label)[label][0]

    @property
    def made(self) -> str:
        """When, where and by which code it was recorded, in a line."""
        first = self.records[0]
        environment = first["environment"]
        return _("recorded {started} on {name} ({kind}, {cores} cores), torch {torch}, training code {code}").format(
            **environment["machine"],
            started=first["started"][:10],
            torch=environment["versions"]["torch"],
            code=environment["code"]["training_sha256"][:8],
        )

    @property
    def origin(self) -> str:
        """`made`, whether the training code is still that which recorded it, and if not, whether it learns the same."""
        now = store.training_hash()
        if all(record["environment"]["code"]["training_sha256"] == now for record in self.records):
            return self.made
        if self.name in REPEATED and self.path == kept_path(self.name):
            changed = _(
                "{made}; the kit's training code has changed since, and tests find the same first losses with it"
            )
        else:
            changed = _("{made}; the kit's training code has changed since")
        return changed.format(made=self.made)


def load(name) -> Study:
    """The study as recorded on this machine, else as it came with the kit.

    Raises:
        FileNotFoundError: it was not recorded; the text says how to.
    """
    found = read(name, own_path(name)) or read(name, kept_path(name))
    if found is None:
        raise FileNotFoundError(f"no study {name!r} was recorded here: run `python -m benchmarks.studies {name}`")
    return found


def read(name, path) -> Study | None:
    """The study in the file `path`, or None if there is none, or only a part of one."""
    if not path.is_file():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    return Study(name, found["records"], path) if found["complete"] else None


def own_path(name) -> Path:
    """Where a study recorded on this machine is."""
    return results_root() / "studies" / f"{name}.json"


def kept_path(name) -> Path:
    """Where a study that came with the kit is."""
    return project_root() / "recorded" / "studies" / f"{name}.json"


def digits_at_8():
    """(train, test): the digits at their own 8×8 pixels, so that an epoch takes about a second on a CPU."""
    import torch.nn.functional as F

    from ..data import sets

    sets.ensure("digits")
    both = (sets.load("digits", part) for part in ("train", "test"))
    return tuple(replace(s, images=F.avg_pool2d(s.images.float(), 4).round().byte()) for s in both)

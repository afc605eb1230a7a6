"""Studies: series of runs too long for a notebook, recorded once and kept as data.

A notebook shows a recorded study beside a short form that it runs live, and says which is which.
`python -m helpers study NAME` records one again on your machine, and the notebooks then show yours.
"""

import json
import os
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..launcher.progress import Progress
from ..paths import project_root, replace_file, results_root
from ..records import store
from . import ladder
from .study_configs import STUDIES


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
        """When, where and by which code it was recorded, and whether that is the code here, in a line."""
        code = self.records[0]["environment"]["code"]["training_sha256"]
        same = code == store.code_state()["training_sha256"]
        return f"{self.source} ({'the code here' if same else 'changed since'})"

    @property
    def source(self) -> str:
        """When, where and by which code it was recorded, in a line."""
        first = self.records[0]
        machine, versions = first["environment"]["machine"], first["environment"]["versions"]
        code = first["environment"]["code"]["training_sha256"]
        return (
            f"recorded {first['started'][:10]} on {machine['name']} ({machine['kind']}, {machine['cores']} cores), "
            f"torch {versions['torch']}, training code {code[:8]}"
        )


def load(name) -> Study:
    """The study as recorded on this machine, else as it came with the kit.

    Raises:
        ValueError: there is no such study.
        FileNotFoundError: it was not recorded; the text says how to.
    """
    _check(name)
    found = read(name, own_path(name)) or read(name, kept_path(name))
    if found is None:
        raise FileNotFoundError(f"the study {name!r} was not recorded here: run `python -m helpers study {name}`")
    return found


def read(name, path) -> Study | None:
    """The study in the file `path`, or None if there is none, or only a part of one."""
    if not path.is_file():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    return Study(name, found["records"], path) if found["complete"] else None


def record(name, keep=False) -> Study:
    """Run what is missing of a study, one seed after the other, and save it after every run.

    Stopped, it goes on where it was. Runs made by other training code, or that failed, are made
    again. With `keep` the finished study is also written to where the kit keeps those it comes with.
    """
    _check(name)
    configs = STUDIES[name]()
    known = {_key(r["label"], r["config"]["seed"]): r for r in _usable(own_path(name))}
    records = [known[_key(c.label, c.seed)] for c in configs if _key(c.label, c.seed) in known]
    missing = [config for config in configs if _key(config.label, config.seed) not in known]
    with Progress([config.label for config in missing]) as progress:
        for config in missing:
            with _empty_caches():  # what was compiled before would hide what it costs
                made = ladder.run(config, group=f"study-{name}", progress=progress)
            records.append(_slim(made))
            _write(own_path(name), name, records, complete=len(records) == len(configs))
    order = {_key(c.label, c.seed): place for place, c in enumerate(configs)}
    records.sort(key=lambda r: order[_key(r["label"], r["config"]["seed"])])
    for path in (own_path(name), kept_path(name))[: 1 + keep]:
        _write(path, name, records, complete=True)
    return load(name)


def own_path(name) -> Path:
    """Where a study recorded on this machine is."""
    return results_root() / "studies" / f"{name}.json"


def kept_path(name) -> Path:
    """Where a study that came with the kit is."""
    return project_root() / "recorded" / "studies" / f"{name}.json"


def speed_by_batch(records, model) -> dict:
    """Speed relative to plain fp32 at the same batch, of the runs of `model`.

    Returns {"O1-bf16 · channels last": [{"batch", "ratio", "q1", "q3"}, …], …}, ordered by batch.
    """
    runs = [r for r in records if r["config"]["model"] == model and r["measured"]["images_per_s"]]
    batch = lambda run: run["config"]["local_batch"]  # noqa: E731
    plain = {batch(r): r["measured"]["images_per_s"] for r in runs if _variant(r) == "fp32"}
    series = {}
    for run in sorted(runs, key=batch):
        if _variant(run) != "fp32" and batch(run) in plain:
            rate, base = run["measured"]["images_per_s"], plain[batch(run)]["median"]
            ratio, q1, q3 = (rate[key] / base for key in ("median", "q1", "q3"))
            point = {"batch": batch(run), "ratio": ratio, "q1": q1, "q3": q3}
            series.setdefault(_variant(run), []).append(point)
    return series


def _variant(run):
    config = run["config"]
    return config["precision"] + " · channels last" * config["channels_last"]


# -- on disk ------------------------------------------------------------------------------


def _check(name):
    if name not in STUDIES:
        raise ValueError(f"there is no study {name!r}; there are {', '.join(STUDIES)}")


def _key(label, seed):
    return f"{label} / seed {seed}"


def _usable(path):
    if not path.is_file():
        return []
    now = store.code_state()["training_sha256"]
    return [
        r for r in json.loads(path.read_text(encoding="utf-8"))["records"]
        if r["status"] == "completed" and r["environment"]["code"]["training_sha256"] == now
    ]  # fmt: skip


@contextmanager
def _empty_caches():
    names = ("HELPERS_CACHE", "TORCHINDUCTOR_CACHE_DIR")
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update({name: os.path.join(folder, name) for name in names})
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


def _slim(made):
    """The record with its samples to five digits, which is more than a clock is good for."""
    rounded = lambda values: [float(f"{value:.5g}") for value in values]  # noqa: E731
    measured = made["measured"]
    samples = {name: rounded(values) for name, values in measured["samples"].items()}
    return {**made, "measured": {**measured, "samples": samples}}


def _write(path, name, records, complete):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(r) for r in records)
    head = f'"study": {json.dumps(name)}, "complete": {json.dumps(complete)}'
    replace_file(path, f'{{{head}, "records": [\n{lines}\n]}}\n')

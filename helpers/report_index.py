"""The heads of many records, kept so that a report need not read all their files again.

What a run measured is most of its file, and of a hundred thousand runs a report shows some hundreds. So the index keeps
what records are sorted by, beside size and time of each file; a file is read again when these have changed, and what
was measured when somebody asks for it. The index lies in the cache folder: none is taken from a folder of records,
which may be somebody else's.
"""

import hashlib
import json
import os
from collections.abc import MutableMapping
from pathlib import Path

from . import config, paths, report_records, results

OWN = ("run_id", "group", "started", "total_s")  # of one record, or of few
SHARED = ("config", "environment", "rest")  # parts that many records have alike: kept once
LATER = "measured"


class Measured(MutableMapping):
    """What a run has measured, read from its file at the first question.

    Raises:
        OSError: the record is not there any more.
    """

    def __init__(self, path, place, run_id):
        self._from, self._known = (path, place, run_id), None

    @property
    def _whole(self):
        if self._known is None:
            path, place, run_id = self._from
            found = [record for record, _, where in report_records.contents(path) if record and where == place]
            if [record["run_id"] for record in found] != [run_id]:
                raise OSError(f"{path} has changed while the report was made: make it again")
            self._known = found[0][LATER]
        return self._known

    def __getitem__(self, key):
        return self._whole[key]

    def __setitem__(self, key, value):
        self._whole[key] = value

    def __delitem__(self, key):
        del self._whole[key]

    def __iter__(self):
        return iter(self._whole)

    def __len__(self):
        return len(self._whole)

    def __bool__(self):  # without reading: nothing is kept for later that is empty
        return True


def read(folder, files) -> list:
    """[(name, as `report_records.contents` gives)] of `files`, pairs (path, name), the measured parts unread."""
    place = _place(folder)
    shared, known = _load(place)
    numbers = {name: {_text(part): number for number, part in enumerate(parts)} for name, parts in shared.items()}
    kept, news = [], len(files) != len(known)
    for path, named in files:
        size, changed = _stamp(path)
        entry = known.get(named)
        if entry is None or entry[1] != size or entry[2] != changed:
            entry = named, size, changed, [_head(item, shared, numbers) for item in report_records.contents(path)]
            news = True
        kept.append(entry)
    if news:
        _save(place, shared, kept)
    pairs = zip(files, kept, strict=True)
    return [(named, [_item(path, *item, shared) for item in items]) for (path, _), (named, _, _, items) in pairs]


def _place(folder):
    name = hashlib.sha256(os.path.abspath(folder).encode()).hexdigest()[:24]
    return paths.cache_root() / "records" / f"{name}.json"


def _version():
    """Changes when a record might be read in another way."""
    code = [Path(module.__file__).read_bytes() for module in (report_records, config, results)]
    return hashlib.sha256(b"".join([Path(__file__).read_bytes(), *code])).hexdigest()


def _load(place):
    try:
        content = json.loads(place.read_text(encoding="utf-8"))
        if content["version"] == _version():
            return content["shared"], {entry[0]: entry for entry in content["files"]}
    except (OSError, ValueError, KeyError, TypeError):  # none yet, or damaged: made anew
        pass
    return {name: [] for name in SHARED}, {}


def _save(place, shared, kept):
    content = {"version": _version(), "shared": shared, "files": kept}
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        paths.replace_file(place, json.dumps(content, separators=(",", ":")))
    except OSError:  # no room, or not ours to write: then the next report reads all files again
        pass


def _stamp(path):
    try:
        found = os.stat(path)
    except OSError:  # removed just now
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _head(item, shared, numbers):
    """What is kept of a record: (its own part, numbers of the shared ones, place), or (None, why not, place)."""
    record, why, place = item
    if record is None:
        return None, why, place
    rest = {key: value for key, value in record.items() if key not in SHARED and key not in OWN}
    if rest.get(LATER):
        rest[LATER] = True
    which = []
    for name, part in zip(SHARED, (record["config"], record["environment"], rest), strict=True):
        number = numbers[name].setdefault(_text(part), len(shared[name]))
        if number == len(shared[name]):
            shared[name].append(part)
        which.append(number)
    return {key: record[key] for key in OWN if key in record}, which, place


def _item(path, own, which, place, shared):
    if own is None:
        return None, which, place
    config, environment, rest = which
    record = {
        **shared["rest"][rest], **own,
        "config": shared["config"][config], "environment": shared["environment"][environment],
    }  # fmt: skip
    if record.get(LATER):
        record[LATER] = Measured(path, place, own["run_id"])
    return record, "", place


def _text(part):
    return json.dumps(part)

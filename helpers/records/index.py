"""The heads of many records, kept so that a report need not read all their files again.

What a run measured is most of its file, and of a hundred thousand runs a report shows some hundreds. So the index keeps
what records are sorted by, beside size and time of each file; a file is read again when these have changed, and what
was measured when somebody asks for it. The index lies in the cache folder: none is taken from a folder of records,
which may be somebody else's.
"""

import hashlib
import marshal
import os
from collections.abc import MutableMapping
from contextlib import closing
from pathlib import Path

from .. import config, paths
from . import heads as report_heads
from . import progress as report_progress
from . import read as report_records
from . import store
from .heads import LATER, Heads


class Measured(MutableMapping):
    """What a run has measured, read from its file at the first question.

    Raises:
        OSError: the record is not there any more.
    """

    __slots__ = "_from", "_known"

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
    """[(name, as `report_records.contents` gives)] of `files`, pairs (path, name), the measured parts unread.

    Raises:
        KeyboardInterrupt: while files were read; what was read by then is kept, and not read again.
    """
    place = _place(folder)
    heads, known = _load(place)
    kept, news = {}, []
    for path, named in files:
        entry, stamp = known.get(named), _stamp(path)
        if entry is not None and entry[:2] == stamp:
            kept[named] = entry
        else:
            news.append((path, named, stamp))
    if news or len(known) != len(files):
        _add(news, kept, heads, place, [named for _, named in files])
    made = _Made(heads.shared)
    return [(named, [made.item(path, *item) for item in kept[named][2]]) for path, named in files]


def _add(news, kept, heads, place, names):
    """Read the new files into `kept` and keep all, or as many as were read, in the index."""
    chunks, seen = {}, len(kept)
    try:
        coming = report_heads.of_files([path for path, *_ in news])
        with report_progress.Reading(len(names)) as progress, closing(coming):  # no process is left of a stopped one
            for number, chunk in coming:
                chunks[number] = chunk
                seen += len(chunk[0])
                progress.now(seen)
    except KeyboardInterrupt:
        _take(news, chunks, kept, heads)
        there = _save(place, heads.shared, {named: kept[named] for named in names if named in kept})
        after = "; the next report reads the others" if there else ""
        raise KeyboardInterrupt(f"{len(kept):,} of {len(names):,} files were read{after}") from None
    _take(news, chunks, kept, heads)
    _save(place, heads.shared, {named: kept[named] for named in names})


def _take(news, chunks, kept, heads):
    """Put what was read into `kept`, in the order of the files, whatever that was in which they were read."""
    size = report_heads.CHUNK
    for number in sorted(chunks):
        files = news[number * size : (number + 1) * size]
        for (_, named, stamp), items in zip(files, heads.taken(chunks[number]), strict=True):
            kept[named] = *stamp, items


def _place(folder):
    name = hashlib.sha256(os.path.abspath(folder).encode()).hexdigest()[:24]
    return paths.cache_root() / "records" / f"{name}.index"


def _version():
    """Changes when a record might be read in another way."""
    code = [Path(module.__file__).read_bytes() for module in (report_heads, report_records, config, store)]
    return hashlib.sha256(b"".join([Path(__file__).read_bytes(), *code])).digest()


def _sum(content):
    """Of a version of the kit and what it wrote: what is damaged, or of another version, is not looked at."""
    return hashlib.sha256(_version() + content).digest()


def _load(place):
    """(what is shared, {name: (size, time, items)})."""
    try:
        content = place.read_bytes()
        size = hashlib.sha256().digest_size
        if content[:size] == _sum(content[size:]):
            shared, names, *columns = marshal.loads(content[size:])
            return Heads(shared), dict(zip(names, zip(*columns, strict=True), strict=True))
    except (OSError, ValueError, EOFError, TypeError):  # none yet, or of another Python: made anew
        pass
    return Heads(), {}


def _save(place, shared, kept):
    """Whether there is an index now."""
    try:
        content = marshal.dumps((shared, list(kept), *([entry[n] for entry in kept.values()] for n in range(3))))
        place.parent.mkdir(parents=True, exist_ok=True)
        paths.replace_file(place, _sum(content) + content)
    except (OSError, ValueError):  # no room, not ours to write, or nested too deep: the next report reads all again
        return False
    return True


def _stamp(path):
    try:
        found = os.stat(path)
    except OSError:  # removed just now
        return 0, 0
    return found.st_size, found.st_mtime_ns


class _Made:
    """Makes records of what is kept of them."""

    def __init__(self, shared):
        self._shared, self._alike = shared, {}

    def item(self, path, own, which, place):
        """As `report_records.contents` gives it."""
        if own is None:
            return None, which, place
        alike = self._alike.get(which) or self._alike.setdefault(which, self._parts(*which))
        record = {**alike, **own}
        if alike.get(LATER):
            record[LATER] = Measured(path, place, own["run_id"])
        return record, "", place

    def _parts(self, config, environment, rest):
        shared = self._shared
        return {
            **shared["rest"][rest], "config": shared["config"][config],
            "environment": shared["environment"][environment],
        }  # fmt: skip

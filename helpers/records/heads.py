"""What is kept of many records, read from their files as fast as it goes, in as many processes as there are cores.

Most of a record are the times of single steps, and most of the time for reading it goes into making numbers of them,
which nobody has asked for yet. Here they stay as they are written.
"""

import json
import marshal
import os

from .. import device
from . import forks as report_forks
from . import read
from .read import AMOUNTS

OWN = ("run_id", "group", "started", "total_s")  # of one record, or of few
SHARED = ("config", "environment", "rest")  # parts that many records have alike: kept once
LATER = "measured"
CHUNK = 200  # files that are read between two looks at the clock
TOGETHER = 3000  # files from which on it is worth to start processes

_UNREAD = json.JSONDecoder(parse_float=str.encode)  # JSON makes no bytes: they are the floats, and checked like those


def items(path) -> list:
    """What `report_records.contents` gives, except that of what was measured only that it is there."""
    try:
        with open(path, "rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size > read.MAX_BYTES:
                return read.contents(path)
            content = file.read()
        raws = read.raws(_UNREAD.decode(content.decode()))
        found = [read.checked(_made(raw), place) for place, raw in raws]
    except (OSError, ValueError, RecursionError):
        return read.contents(path)
    if any(record is None for record, _, _ in found):  # perhaps by a check that met a float which is not made
        return read.contents(path)
    return found


def _made(raw):
    """A record's floats made, in place, but for those in what was measured that no check looks at."""
    measured = raw.get(LATER) if type(raw) is dict else None
    parts = measured if type(measured) is dict else {}
    aside = {name: part for name, part in parts.items() if type(part) in (dict, list) and name not in AMOUNTS}
    parts.update(dict.fromkeys(aside))
    _floats(raw)
    parts.update(aside)
    return raw


def _floats(part):
    for key, value in part.items() if type(part) is dict else enumerate(part) if type(part) is list else ():
        kind = type(value)
        if kind is bytes:
            part[key] = float(value)
        elif kind is dict or kind is list:
            _floats(value)


class Heads:
    """Heads of records, with what many of them share kept once.

    Attributes:
        shared: for each name of SHARED, the different parts in the order in which they came first.
    """

    def __init__(self, shared=None):
        self.shared = shared or {name: [] for name in SHARED}
        self._numbers = {
            name: {_text(part): number for number, part in enumerate(parts)} for name, parts in self.shared.items()
        }

    def number(self, name, part) -> int:
        """The number of a shared part, which is a new one if nobody had it before."""
        parts, text = self.shared[name], _text(part)
        number = self._numbers[name].get(text)
        if number is None:
            parts.append(part)
            number = self._numbers[name][text] = len(parts) - 1
        return number

    def head(self, item):
        """What is kept of a record: (its own part, numbers of the shared ones, place), or (None, why not, place)."""
        record, why, place = item
        if record is None:
            return None, why, place
        rest = {key: value for key, value in record.items() if key not in SHARED and key not in OWN}
        if rest.get(LATER):
            rest[LATER] = True
        parts = zip(SHARED, (record["config"], record["environment"], rest), strict=True)
        which = tuple(self.number(name, part) for name, part in parts)
        return {key: record[key] for key in OWN if key in record}, which, place

    def taken(self, chunk) -> list:
        """The heads of `of_chunk`, with the numbers that their shared parts have here."""
        heads, shared = chunk
        new = [[self.number(name, part) for part in shared[name]] for name in SHARED]
        return [
            [
                (own, which if own is None else tuple(of[old] for of, old in zip(new, which, strict=True)), place)
                for own, which, place in of_file
            ]
            for of_file in heads
        ]


def _text(part):
    try:
        return marshal.dumps(part, 2)  # the same for two parts if their JSON is the same, in half the time
    except ValueError:  # too deep
        return json.dumps(part)


def of_chunk(paths) -> tuple:
    """([the heads of each file], what they share)."""
    known = Heads()
    return [[known.head(item) for item in items(path)] for path in paths], known.shared


def of_files(paths):
    """(its number, `of_chunk`) of every CHUNK files, as they get done; from TOGETHER files on, processes share them."""
    chunks = [paths[start : start + CHUNK] for start in range(0, len(paths), CHUNK)]
    missing = dict(enumerate(chunks))
    if len(paths) >= TOGETHER and (workers := device.usable_cores()) > 1 and report_forks.may_fork():
        with report_forks.Forks(of_chunk, chunks, workers) as forks:
            for number, found in forks.found():
                del missing[number]
                yield number, found
    for number, chunk in missing.items():  # all, or what a process that died has not read
        yield number, of_chunk(chunk)

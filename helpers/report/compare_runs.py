"""Pairs of records: how their settings differ, so that a difference in what was measured is not given a wrong cause."""

from typing import NamedTuple

from ..config import SETTINGS
from ..plots.style import clean
from ..settings import differing

CLOSE = 0.03  # a smaller gain is not called one
SPREADS = {name for name, setting in SETTINGS.items() if setting.spreads}  # settings that belong together
TRAINING = [name for name, one in SETTINGS.items() if (one.changes_learning or one.changes_timing) and name != "seed"]


class Said(NamedTuple):
    """A sentence and the ids of the records that back it."""

    text: str
    runs: tuple


def ids(*records) -> tuple:
    """The ids of records, with those of all rounds that were put together in them."""
    return tuple(dict.fromkeys(run for record in records for run in record.get("rounds") or [record["run_id"]]))


def called(record) -> str:
    """A record's label, fit for a sentence."""
    return clean(record["label"], 60)


def training(record) -> str:
    """What two records have in common that are rounds, or seeds, of the same run."""
    return str([record["label"], *(record["config"].get(name) for name in TRAINING)])


def timed(record) -> bool:
    """Whether it completed and had enough steps to time."""
    return record["status"] == "completed" and bool(record["measured"]["images_per_s"])


def partner(record, records, **changed):
    """The last of `records` with timed steps and the settings `changed` that is else timed alike; None without one.

    Where one of them divides the work among devices, all settings that do may differ.
    """
    apart = {*changed, *(SPREADS if SPREADS & set(changed) else ())}
    for other in reversed(records):
        right = all(other["config"].get(key) == value for key, value in changed.items())
        if right and other["run_id"] not in ids(record) and timed(other):
            differ = differing(other["config"], record["config"], SETTINGS)
            if all(setting.name in apart for setting in differ if setting.changes_timing):
                return other
    return None

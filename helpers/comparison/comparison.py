"""Runs side by side, as they were recorded; nothing here runs anything, so it needs no torch."""

from dataclasses import dataclass, field
from functools import cached_property

from .. import measure
from ..config import SETTINGS
from ..records import read
from ..settings import differing


@dataclass(repr=False)
class Comparison:
    """Runs side by side; the first is what the others are compared with.

    `runs` are the records as they are on disk, `records` one for each label, its rounds put together.
    """

    runs: list
    records: list = field(init=False)
    baseline: dict = field(init=False)

    def __post_init__(self):
        self.records = read.merged(self.runs)
        if not self.records or self.records[0]["status"] != "completed":
            raise ValueError("a comparison needs a completed first run to compare with")
        self.baseline = self.records[0]

    def speed_up(self, record) -> dict | None:
        """How many times the baseline's samples a second, or None.

        Median, quartiles (q1, q3) of the steps, and the 95% interval of the median (low, high).
        """
        return _speed_up(record, self.baseline)

    def rows(self) -> list:
        """One dict a run with its numbers, speed-up, efficiency and prediction.

        The efficiency is that of using more devices, so a run whose devices also compute otherwise has none.
        """
        return self._rows

    @cached_property
    def _rows(self):
        return rows(self.records, self.baseline)

    def __repr__(self):
        return str(self)

    def _repr_html_(self):
        from .. import plots

        return plots.shown(self).to_html(index=False)

    def __str__(self):
        from .. import plots

        return plots.shown(self).to_string(index=False)

    def show(self):
        """The speed-up plot beside accuracy, in the notebook."""
        from .. import plots

        plots.show(*plots.speed_up(self))


def rows(records, baseline) -> list:
    """What `Comparison.rows` returns; without a baseline (None) there are no speed-ups."""
    found = []
    for record in records:
        row, total, speed = read.row(record), record.get("total_s"), _speed_up(record, baseline) or {}
        changed = differing(record["config"], baseline["config"], SETTINGS) if speed else ()
        scaled = speed and not any(one.changes_timing and not one.spreads for one in changed)
        found.append(
            {
                **row,
                "speed_up": speed.get("median"),
                "speed_up_q1": speed.get("q1"),
                "speed_up_q3": speed.get("q3"),
                "speed_up_low": speed.get("low"),
                "speed_up_high": speed.get("high"),
                "efficiency": speed["median"] / row["devices"] if scaled else None,
                "predicted": record.get("prediction"),
                "whole_run_speed_up": _whole_run(record, baseline) if total and baseline else None,
                "note": (record.get("measured") or {}).get("note") or record["error"] or "",
            }
        )
    return found


def rates(record) -> dict | None:
    """Samples a second of a record: median, quartiles (q1, q3), ends of the median's 95% interval (low, high).

    None if nothing was measured. Too few steps have no interval; the quartiles stand in for its ends.
    """
    measured = record.get("measured") or {}
    rate = measured.get("images_per_s")
    if not rate:
        return None
    found = {key: rate[key] for key in ("median", "q1", "q3")}
    if len(times := measured["samples"]["step_time_s"]) < measure.AT_LEAST:
        return {**found, "low": rate["q1"], "high": rate["q3"]}
    shortest, longest = measure.median_interval(times)
    batch = record["config"]["global_batch"]
    return {**found, "low": batch / longest, "high": batch / shortest}


def _speed_up(record, baseline):
    rate, base = rates(record), baseline and rates(baseline)
    return {key: value / base["median"] for key, value in rate.items()} if rate and base else None


def _whole_run(record, baseline):
    """How many times the baseline's samples a second of the whole run: start, data, training and evaluation."""
    rates = [
        one["config"]["global_batch"] * ((one.get("measured") or {}).get("steps") or 0) / one["total_s"]
        for one in (record, baseline)
    ]
    return rates[0] / rates[1] if all(rates) else None

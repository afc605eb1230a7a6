"""Runs side by side, as they were recorded; nothing here runs anything, so it needs no torch."""

from dataclasses import dataclass, field

from ..config import SETTINGS
from ..records import read, speedup
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
        self._rows = rows(self.records, self.baseline)

    def speed_up(self, record) -> speedup.SpeedUp | None:
        """How many times the baseline's samples a second (ratio, low, high), or None where nothing was timed."""
        return speedup.of_records(record, self.baseline)

    def rows(self) -> list:
        """One dict a run with its numbers, speed-up, efficiency and prediction.

        The efficiency is that of using more devices, so a run whose devices also compute otherwise has none.
        """
        return self._rows

    def __repr__(self):
        return str(self)

    def _repr_html_(self):
        from .. import plots

        return plots.table(self).to_html(index=False)

    def __str__(self):
        from .. import plots

        return plots.table(self).to_string(index=False)

    def show(self):
        """The speed-up plot beside accuracy, in the notebook."""
        from .. import plots

        plots.show(*plots.speed_up(self))


def rows(records, baseline) -> list:
    """What `Comparison.rows` returns; without a baseline (None) there are no speed-ups."""
    found = []
    for record in records:
        row, total = read.row(record), record.get("total_s")
        speed = baseline and speedup.of_records(record, baseline)
        changed = differing(record["config"], baseline["config"], SETTINGS) if speed else ()
        scaled = speed and not any(one.changes_timing and not one.spreads for one in changed)
        found.append(
            {
                **row,
                "speed_up": speed and speed.ratio,
                "speed_up_low": speed and speed.low,
                "speed_up_high": speed and speed.high,
                "efficiency": speed.ratio / row["devices"] if scaled else None,
                "predicted": record.get("prediction"),
                "whole_run_speed_up": _whole_run(record, baseline) if total and baseline else None,
                "note": (record.get("measured") or {}).get("note") or record["error"] or "",
            }
        )
    return found


def _whole_run(record, baseline):
    """How many times the baseline's samples a second of the whole run: start, data, training and evaluation."""
    rates = [
        one["config"]["global_batch"] * ((one.get("measured") or {}).get("steps") or 0) / one["total_s"]
        for one in (record, baseline)
    ]
    return rates[0] / rates[1] if all(rates) else None

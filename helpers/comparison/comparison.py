"""Runs side by side, as they were recorded; nothing here runs anything, so it needs no torch."""

from dataclasses import dataclass, field
from functools import cached_property

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
        """How many times the baseline's images/s: median and middle half of the steps, or None."""
        rate = (record.get("measured") or {}).get("images_per_s")
        base = self.baseline["measured"]["images_per_s"]
        if not rate or not base:
            return None
        return {key: rate[key] / base["median"] for key in ("median", "q1", "q3")}

    def rows(self) -> list:
        """One dict a run with its numbers, speed-up, efficiency and prediction.

        The efficiency is that of using more devices, so a run whose devices also compute otherwise has none.
        """
        return self._rows

    @cached_property
    def _rows(self):
        rows = []
        for record in self.records:
            speed, row, total = self.speed_up(record) or {}, read.row(record), record.get("total_s")
            median, changed = speed.get("median"), differing(record["config"], self.baseline["config"], SETTINGS)
            scaled = median and not any(one.changes_timing and not one.spreads for one in changed)
            rows.append({
                **row, "speed_up": median,
                "speed_up_q1": speed.get("q1"), "speed_up_q3": speed.get("q3"),
                "efficiency": median / row["devices"] if scaled else None,
                "predicted": record.get("prediction"),
                "whole_run_speed_up": total and self.baseline["total_s"] / total,
                "note": (record.get("measured") or {}).get("note") or (record["error"] or ""),
            })  # fmt: skip
        return rows

    def frame(self):
        """The rows as a pandas DataFrame."""
        import pandas

        return pandas.DataFrame(self.rows())

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

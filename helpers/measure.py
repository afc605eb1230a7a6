"""Numbers one can trust: samples after a warm-up, reported as a median with its spread."""

import math
import statistics
from contextlib import contextmanager
from time import perf_counter

AT_LEAST = 5  # fewer samples have no spread worth showing


def summary(samples) -> dict:
    """Median, quartiles, extremes and number of `samples` (any unit); ValueError for fewer than AT_LEAST."""
    values = sorted(float(sample) for sample in samples)
    if len(values) < AT_LEAST:
        raise ValueError(f"{len(values)} sample(s): at least {AT_LEAST} are needed for a median and its spread")
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": middle, "q1": low, "q3": high, "min": values[0], "max": values[-1], "n": len(values)}


def median_interval(samples) -> tuple:
    """(low, high): where the true median lies with a confidence of 95%, for independent `samples` in any unit.

    Both ends are samples: below the median lie as many of n as heads fall in n tosses of a coin (order statistics).
    It shrinks as samples grow, and knows nothing of what slowed all samples alike. Five samples reach 94%; with fewer
    than AT_LEAST it raises ValueError.
    """
    values = sorted(map(float, samples))
    n = summary(values)["n"]
    end, tail = 0, 0.5**n
    while tail + math.comb(n, end + 1) * 0.5**n <= 0.025:
        end += 1
        tail += math.comb(n, end) * 0.5**n
    return values[end], values[-1 - end]


def with_interval(samples) -> dict:
    """`summary` with the ends of the `median_interval`, "low" and "high"."""
    low, high = median_interval(samples := list(samples))
    return {**summary(samples), "low": low, "high": high}


class TimeBreakdown:
    """The wall time of a run, by part: each second belongs to exactly one, and a part can be entered many times."""

    def __init__(self, clock=perf_counter):
        self.seconds, self._clock, self._open, self._mark = {}, clock, [], 0.0

    @contextmanager
    def part(self, name):
        """Book the time inside the block to `name`, less what inner blocks book to theirs."""
        self._book()
        self._open.append(name)
        try:
            yield
        finally:
            self._book()
            self._open.pop()

    def so_far(self):
        """{part: seconds}, with those of the parts that have not ended."""
        self._book()
        return dict(self.seconds)

    def _book(self):
        now = self._clock()
        if self._open:
            self.seconds[self._open[-1]] = self.seconds.get(self._open[-1], 0.0) + now - self._mark
        self._mark = now

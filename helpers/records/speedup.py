"""How many times as fast one run is as another, with a 95% interval: the kit's one rule for calling a run faster.

The interval is that of the ratio, so the noise of both runs is in it. Where it holds 1, a difference is not shown;
that is no evidence that there is none.
"""

from math import sqrt
from statistics import median
from typing import NamedTuple

from ..measure import AT_LEAST, median_interval

SPEED_UP = ("speed_up", "speed_up_low", "speed_up_high")  # where a row of a table has the three numbers


class SpeedUp(NamedTuple):
    """A ratio of speeds and its interval's ends, which are None where there were too few steps."""

    ratio: float
    low: float | None = None
    high: float | None = None

    @property
    def shown(self) -> bool:
        """Whether the measurement shows a difference: an interval without 1."""
        return self.low is not None and not self.low <= 1 <= self.high


def shows(row) -> bool:
    """Whether the speed-up of a row is shown."""
    return SpeedUp(*(row[name] for name in SPEED_UP)).shown


def of_times(times, base, work=1.0) -> SpeedUp:
    """How many times as fast steps of `times` are as steps of `base`.

    With AT_LEAST rounds or more, each gives a ratio of medians, and the interval is that of the median ratio. With
    fewer, it divides opposite ends of the two medians' intervals: it holds 1 exactly where these overlap; what slowed
    a whole round of both runs alike is divided out before.

    Args:
        times, base: seconds, in lists, one for each round; round k of both was measured at about the same time.
        work: samples in a step of `times` over those in a step of `base`.
    """
    if len(times) != len(base):
        times, base = [sum(times, [])], [sum(base, [])]
    medians = [(median(one), median(other)) for one, other in zip(times, base, strict=True)]
    if len(medians) >= AT_LEAST:
        ratios = [work * other / one for one, other in medians]
        return SpeedUp(median(ratios), *median_interval(ratios))
    levels = [sqrt(one * other) for one, other in medians]
    times, base = (
        [second / level for seconds, level in zip(of, levels, strict=True) for second in seconds]
        for of in (times, base)
    )
    ratio = work * median(base) / median(times)
    if min(len(times), len(base)) < AT_LEAST:
        return SpeedUp(ratio)
    (low, high), (base_low, base_high) = median_interval(times), median_interval(base)
    return SpeedUp(ratio, work * base_low / high, work * base_high / low)


def of_records(record, base) -> SpeedUp | None:
    """The speed-up of a record over another in samples a second; None if one of them has no timed steps.

    Each may be the rounds of a run as `read.merged` puts them together. A run beside itself has exactly 1.
    """
    rounds = []
    for measured in (one.get("measured") or {} for one in (record, base)):
        if not measured.get("images_per_s"):  # too few steps for a median and its spread
            return None
        steps = measured.get("rounds_s") or [measured["samples"]["step_time_s"]]
        rounds.append([seconds for seconds in steps if seconds])
    if record is base:
        return SpeedUp(1.0, 1.0, 1.0)
    return of_times(*rounds, record["config"]["global_batch"] / base["config"]["global_batch"])

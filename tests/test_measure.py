"""How times are taken and summarised."""

import math
import random

import pytest

from helpers.measure import TimeBreakdown, median_interval, summary


def test_parts_book_each_second_once():
    times = iter([0.0, 1.0, 4.0, 6.0, 10.0])
    parts = TimeBreakdown(clock=lambda: next(times))
    with parts.part("outer"):
        with parts.part("inner"):
            pass
        assert parts.so_far() == {"inner": 3.0, "outer": 3.0}, "a part that has not ended counts, too"
    assert parts.seconds == {"inner": 3.0, "outer": 7.0}


def test_summary_needs_five_samples():
    assert summary([3, 1, 2, 100, 2]) == {"median": 2, "q1": 2, "q3": 3, "min": 1, "max": 100, "n": 5}
    with pytest.raises(ValueError, match="at least 5"):
        summary([1, 2, 3, 4])


@pytest.mark.parametrize("n, ends", [(5, (1, 5)), (6, (1, 6)), (9, (2, 8)), (20, (6, 15)), (100, (40, 61))])
def test_the_interval_of_a_median_is_that_of_the_tables(n, ends):
    assert median_interval(reversed(range(1, n + 1))) == ends


def test_the_interval_holds_the_true_median_as_often_as_it_says():
    chance = random.Random(0)
    intervals = [median_interval([chance.expovariate(1) for _ in range(19)]) for _ in range(1000)]
    assert 940 <= sum(low <= math.log(2) <= high for low, high in intervals) <= 990

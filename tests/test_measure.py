"""How times are taken and summarised."""

import pytest

from helpers.measure import Parts, summary


def test_parts_book_each_second_once():
    times = iter([0.0, 1.0, 4.0, 10.0])
    parts = Parts(clock=lambda: next(times))
    with parts.part("outer"), parts.part("inner"):
        pass
    assert parts.seconds == {"inner": 3.0, "outer": 7.0}


def test_summary_needs_five_samples():
    assert summary([3, 1, 2, 100, 2]) == {"median": 2, "q1": 2, "q3": 3, "min": 1, "max": 100, "n": 5}
    with pytest.raises(ValueError, match="at least 5"):
        summary([1, 2, 3, 4])

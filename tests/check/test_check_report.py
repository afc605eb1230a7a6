"""The checks of notebook 10 accept its solutions and object to mistakes, each in words of its own."""

import statistics

import pytest
from exercises import assert_verdicts, objection

from helpers import check

EXERCISES = [("difference", "report-turn-difference"), ("pays_after", "report-turn-pays")]


@pytest.mark.parametrize("name, cell", EXERCISES)
def test_the_solution_is_right_and_the_first_attempt_is_not(name, cell, capsys):
    assert_verdicts(check, name, "10_report.ipynb", cell, capsys, statistics=statistics)


def by(measure, swapped=False):
    def answer(base, other):
        a, b = measure(base), measure(other)
        return "no difference" if a == b else "faster" if (b < a) != swapped else "slower"

    return answer


def of_extremes(base, other):
    if max(other) < min(base):
        return "faster"
    return "slower" if min(other) > max(base) else "no difference"


@pytest.mark.parametrize("mistake, words", [
    (by(statistics.mean), "One odd step"), (by(statistics.median), "next measurement"),
    (by(statistics.median, swapped=True), "Less time a step is faster"), (of_extremes, "odd step at the end"),
    (by(max), "One odd step"), (lambda base, other: None, "`return`"), (lambda base, other: True, "none of"),
    (lambda base: "faster", "TypeError"),
])  # fmt: skip
def test_difference_objects_to(mistake, words, capsys):
    assert words in objection(check, "difference", mistake, capsys)


@pytest.mark.parametrize("mistake, words", [
    (lambda cost, before, after: cost / before, "whole time of a step"),
    (lambda cost, before, after: cost / (before - after) if before != after else None, "give None"),
    (lambda cost, before, after: cost * (before - after), "multiply"),
    (lambda cost, before, after: None, "adds up"),
    (lambda cost, before, after: "soon", "not a number of steps"),
    (lambda cost, before, after: 3, "steps save"),
    (lambda cost, before, after: cost / (before - after), "give None"),
    (lambda cost: cost, "TypeError"),
])  # fmt: skip
def test_pays_after_objects_to(mistake, words, capsys):
    assert words in objection(check, "pays_after", mistake, capsys)

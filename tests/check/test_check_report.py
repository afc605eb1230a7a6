"""The checks of notebook 10: right answers pass, and each kind of mistake has a hint of its own."""

import statistics

from exercises import Checks


def by(measure, swapped=False):
    def answer(base, other):
        a, b = measure(base), measure(other)
        return "no difference" if a == b else "faster" if (b < a) != swapped else "slower"

    return answer


def of_extremes(base, other):
    if max(other) < min(base):
        return "faster"
    return "slower" if min(other) > max(base) else "no difference"


class TestReport(Checks):
    notebook = "10_report.ipynb"
    known = dict(statistics=statistics)
    exercises = {
        "difference": ("report-turn-difference", "difference"), "pays_after": ("report-turn-pays", "pays_after"),
    }  # fmt: skip
    mistakes = {
        "difference": [
            (by(statistics.mean), by(max)), by(statistics.median), by(statistics.median, swapped=True), of_extremes,
            lambda base, other: None, lambda base, other: True, lambda base: "faster",
        ],
        "pays_after": [
            lambda cost, before, after: cost / before,
            (lambda cost, before, after: cost / (before - after) if before != after else None,
             lambda cost, before, after: cost / (before - after)),
            lambda cost, before, after: cost * (before - after), lambda cost, before, after: None,
            lambda cost, before, after: "soon", lambda cost, before, after: 3, lambda cost: cost,
        ],
    }  # fmt: skip

"""The checks of notebook 09 accept its solutions and object to mistakes, each in words of its own."""

import sys

import cloudpickle
import pytest
from exercises import assert_verdicts, cells, objection

from helpers import check

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # else every rank imports pytest to find a mistake

NOTEBOOK = "09_several_machines.ipynb"
EXERCISES = [
    ("where", "where", "hosts-turn-where"), ("ring_seconds", "ring_seconds", "hosts-turn-ring"),
    ("not_hidden", "not_hidden", "hosts-turn-hidden"),
]  # fmt: skip


@pytest.mark.parametrize("name, function, cell", EXERCISES)
def test_the_solution_is_right_and_the_first_attempt_is_not(name, function, cell, capsys):
    checks = type("checks", (), {function: staticmethod(getattr(check, name))})
    assert_verdicts(checks, function, NOTEBOOK, cell, capsys)


def test_the_notebook_calls_these_checks():
    code = "\n".join(cells(NOTEBOOK).values())
    assert all(f"check.{name}(" in code for name, *_ in EXERCISES)


@pytest.mark.parametrize("mistake, words", [
    (lambda rank, each: (rank % each, rank // each), "in the wrong order"),
    (lambda rank, each: (rank // each, rank), "begins anew at 0"),
    (lambda rank, each: (rank % 2, rank % each), "goes on counting"),
    (lambda rank, each: (rank,), "Give two numbers"),
    (lambda rank, each: 1 / 0, "ZeroDivisionError"),
])  # fmt: skip
def test_mistakes_about_places(mistake, words, capsys):
    assert words in objection(check, "where", mistake, capsys)


@pytest.mark.parametrize("mistake, words", [
    (lambda size, n, a, b: 2 * (n - 1) / n * size * b, "What do the messages cost"),
    (lambda size, n, a, b: (n - 1) * (a + size / n * b), "once around the ring"),
    (lambda size, n, a, b: 2 * (n - 1) * (a + size * b), "How large is the piece"),
    (lambda size, n, a, b: a + size * b, "How large is the piece"),
    (lambda size, n, a, b: 2 * n * (a + size / n * b), "How many messages"),
    (lambda size, n, a, b: max(a, 2 * (n - 1) * (a + size / n * b)), "One device alone"),
    (lambda size, n, a, b: None, "TypeError"),
])  # fmt: skip
def test_mistakes_about_rings(mistake, words, capsys):
    assert words in objection(check, "ring_seconds", mistake, capsys)


@pytest.mark.parametrize("mistake, words", [
    (lambda backward, ready, costs: sum(costs), "as if nothing were sent"),
    (lambda backward, ready, costs: costs[-1], "one network for all"),
    (lambda backward, ready, costs: sum(costs) - backward, "less than nothing"),
    (lambda backward, ready, costs: max(0, sum(costs) - backward), "More is left"),
    (lambda backward, ready, costs: sum(costs) + 1, "Less is left"),
    (lambda backward, ready, costs: ready[9], "IndexError"),
])  # fmt: skip
def test_mistakes_about_hiding(mistake, words, capsys):
    assert words in objection(check, "not_hidden", mistake, capsys)

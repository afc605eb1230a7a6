"""The exercises of a notebook, and the tests that the checks of every notebook have to pass."""

import functools
import re
import sys
from pathlib import Path

import cloudpickle
import nbformat
import pytest

from exercises import check, ranks

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


@functools.cache
def cells(notebook):
    """Source of each cell by its id."""
    return {cell.id: cell.source for cell in nbformat.read(NOTEBOOKS / notebook, as_version=4).cells}


def function(name, source, **names):
    """The function `name` that `source` defines where `names` are known; calls of the check are left out."""
    namespace = {"__name__": "reader", **names}
    exec(re.sub(r"^check\..*$", "", source, flags=re.MULTILINE), namespace)
    return namespace[name]


def solution(source):
    """The code in a folded solution."""
    return re.search(r"```python\n(.*?)```", source, re.DOTALL)[1]


def edited(source, edits):
    """`source` after `edits`: "old => new", several of them joined by " ;; "."""
    for edit in edits.split(" ;; "):
        old, new = edit.split(" => ")
        assert old in source, f"the text does not hold {old!r}"
        source = source.replace(old, new)
    return source


def objection(name, mistake, capsys):
    """The hint of the check `name` to a mistake, which must not pass."""
    assert getattr(check, name)(mistake) is False
    # gloo of releases such as 2.10 says on stdout that it is connected.
    hint = re.sub(r"^\[rank \d+\] \[Gloo\].*\n", "", capsys.readouterr().out, flags=re.MULTILINE)
    assert hint.startswith("Not yet. ")
    return hint


class Checks:
    """What holds for the checks of a notebook; its test class inherits this and names what is its own.

    Attributes:
        notebook: its file. known: names that its exercises use.
        exercises: {check: (prefix of its cells' ids, name that the cells define)}; None: tested elsewhere.
        mistakes: {check: [mistake, or a tuple of mistakes of one kind]}; a text with " => " edits the solution.
        slow: checks that start processes or compile; a quick run tries the solution only, the notebook its attempt.
        marks: {check: pytest's marks, such as a reason to skip it}.
    """

    notebook, known, exercises, mistakes, slow, marks = "", {}, {}, {}, (), {}

    @pytest.fixture(autouse=True)
    def patient(self, monkeypatch):
        """A busy machine may need long for what is right."""
        monkeypatch.setattr(ranks, "PATIENCE", 200)

    def __init_subclass__(cls):
        cloudpickle.register_pickle_by_value(sys.modules[cls.__module__])  # else ranks import pytest to find a mistake

    @classmethod
    def answer(cls, exercise, mistake):
        """The reader's answer: the solution after edits, or `mistake` itself where it is not a text of edits."""
        if not isinstance(mistake, str) or " => " not in mistake:
            return mistake
        cell, name = cls.exercises[exercise]
        return function(name, edited(solution(cells(cls.notebook)[f"{cell}-solution"]), mistake), **cls.known)

    def test_the_solution_is_right_and_the_first_attempt_is_not(self, exercise, capsys):
        cell, name = self.exercises[exercise]
        sources = cells(self.notebook)
        attempt = sources.get(f"{cell}-code") or sources[cell]
        assert f"check.{exercise}(" in attempt, "the notebook calls this check"
        answers = [(solution(sources[f"{cell}-solution"]), True), (attempt, False)]
        for source, verdict in answers[:1] if exercise in self.slow else answers:
            assert getattr(check, exercise)(function(name, source, **self.known)) is verdict
            assert capsys.readouterr().out.startswith("Right. " if verdict else "Not yet. ")

    def test_each_kind_of_mistake_has_a_hint_of_its_own(self, mistaken, capsys):
        seen = {}
        for kind, of_kind in enumerate(self.mistakes[mistaken]):
            for mistake in of_kind if isinstance(of_kind, tuple) else (of_kind,):
                hint = objection(mistaken, self.answer(mistaken, mistake), capsys)
                hint = re.sub(r"\d+", "#", hint)  # other numbers make no other hint
                assert seen.setdefault(hint, kind) == kind, f"mistakes {seen[hint]} and {kind}: {hint}"


def pytest_generate_tests(metafunc):
    """The parameters of the tests in Checks, from the attributes of its subclasses."""
    of = metafunc.cls
    if "exercise" in metafunc.fixturenames:
        metafunc.parametrize("exercise", [pytest.param(one, marks=of.marks.get(one, ())) for one in of.exercises])
    if "mistaken" in metafunc.fixturenames:
        of_each = [(one, [pytest.mark.long] * (one in of.slow) + of.marks.get(one, [])) for one in of.mistakes]
        metafunc.parametrize("mistaken", [pytest.param(one, marks=marks) for one, marks in of_each])

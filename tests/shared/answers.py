"""The exercises of a notebook, and the tests that the checks of every notebook have to pass."""

import ast
import functools
import re
import sys
from contextlib import suppress
from pathlib import Path

import cloudpickle
import nbformat
import pytest

from exercises import check, ranks

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
CALL = re.compile(r"^check\.(\w+)\((\w+)\).*$", re.MULTILINE)
# Wrong in every exercise: no function, one that fails, one that forgets to return, one that returns something else.
NONSENSE = (3, lambda *given: 1 / 0, lambda *given: None, lambda *given: "text")
DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)


@functools.cache
def cells(notebook):
    """Source of each cell by its id."""
    return {cell.id: cell.source for cell in nbformat.read(NOTEBOOKS / notebook, as_version=4).cells}


@functools.cache
def exercises(notebook):
    """{check: (id of the cell that calls it, name that it is called with)}."""
    calls = ((cell, CALL.search(source)) for cell, source in cells(notebook).items())
    return {call[1]: (cell, call[2]) for cell, call in calls if call}


@functools.cache
def known(notebook):
    """The names that the notebook imports and the functions that it defines."""
    names = {"__name__": "reader"}
    for source in cells(notebook).values():
        try:
            body = [node for node in ast.parse(source).body if isinstance(node, DEFINITIONS)]
        except SyntaxError:  # prose, or a magic
            continue
        for node in body:
            with suppress(ImportError):  # of notebooks/scripts, which is on a notebook's path only
                exec(compile(ast.Module([node], []), notebook, "exec"), names)
    return names


def function(name, source, notebook, **names):
    """The function `name` that `source` defines in this notebook, where `names` are known too."""
    namespace = {**known(notebook), **names}
    exec(CALL.sub("", source), namespace)
    return namespace[name]


def solution(notebook, exercise):
    """The code in the folded solution."""
    cell = exercises(notebook)[exercise][0].removesuffix("-code")
    return re.search(r"```python\n(.*?)```", cells(notebook)[f"{cell}-solution"], re.DOTALL)[1]


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
    assert hint
    return hint


class Checks:
    """What holds for the checks of a notebook; its test class inherits this and names what is its own.

    Attributes:
        notebook: its file. known: names that its exercises use, beyond imports and definitions.
        mistakes: {check: [one mistake of each kind]}; a text with " => " edits the solution.
        right: {check: [another right answer]}; edits, too.
        slow: checks that start processes or compile; a quick run tries the solution only, the notebook its attempt.
        marks: {check: pytest's marks, such as a reason to skip it}.
    """

    notebook, known, mistakes, right, slow, marks = "", {}, {}, {}, (), {}

    @pytest.fixture(autouse=True)
    def as_in_the_notebook(self, monkeypatch):
        """In its folder; a busy machine may need long for what is right."""
        monkeypatch.chdir(NOTEBOOKS)
        monkeypatch.setattr(ranks, "PATIENCE", 200)

    def __init_subclass__(cls):
        cloudpickle.register_pickle_by_value(sys.modules[cls.__module__])  # else ranks import pytest to find a mistake

    @classmethod
    def answer(cls, exercise, answer):
        """The reader's answer: the solution after edits, or `answer` itself where it is not a text of edits."""
        if not isinstance(answer, str) or " => " not in answer:
            return answer
        source = edited(solution(cls.notebook, exercise), answer)
        return function(exercises(cls.notebook)[exercise][1], source, cls.notebook, **cls.known)

    def test_right_answers_are_right_and_the_first_attempt_is_not(self, exercise):
        cell, name = exercises(self.notebook)[exercise]
        answers = [(solution(self.notebook, exercise), True), (cells(self.notebook)[cell], False)]
        for source, verdict in answers[:1] if exercise in self.slow else answers:
            assert getattr(check, exercise)(function(name, source, self.notebook, **self.known)) is verdict
        for answer in self.right.get(exercise, ()):
            assert getattr(check, exercise)(self.answer(exercise, answer)) is True

    def test_each_kind_of_mistake_has_a_hint_of_its_own(self, mistaken, capsys):
        for nonsense in NONSENSE:
            objection(mistaken, nonsense, capsys)
        seen = {}
        for mistake in self.mistakes[mistaken]:
            hint = re.sub(r"\d+", "#", objection(mistaken, self.answer(mistaken, mistake), capsys))
            assert seen.setdefault(hint, mistake) is mistake, f"{seen[hint]} and {mistake}: {hint}"


def pytest_generate_tests(metafunc):
    """The parameters of the tests in Checks, from the attributes of its subclasses."""
    of = metafunc.cls
    if "exercise" in metafunc.fixturenames:
        each = exercises(of.notebook)
        metafunc.parametrize("exercise", [pytest.param(one, marks=of.marks.get(one, ())) for one in each])
    if "mistaken" in metafunc.fixturenames:
        of_each = [(one, [pytest.mark.long] * (one in of.slow) + of.marks.get(one, [])) for one in of.mistakes]
        metafunc.parametrize("mistaken", [pytest.param(one, marks=marks) for one, marks in of_each])

"""The exercises of a notebook, for the tests of their checks."""

import re
from pathlib import Path

import nbformat

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


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


def assert_verdicts(check, name, notebook, cell, capsys, **names):
    """The check accepts the folded solution and says "not yet" to the first attempt."""
    sources = cells(notebook)
    for source, verdict in ((solution(sources[f"{cell}-solution"]), "Right. "), (sources[f"{cell}-code"], "Not yet. ")):
        assert getattr(check, name)(function(name, source, **names)) is (verdict == "Right. ")
        assert capsys.readouterr().out.startswith(verdict)


def objection(check, name, mistake, capsys):
    """What the check `name` says to a mistake, which it must object to."""
    assert getattr(check, name)(mistake) is False
    said = capsys.readouterr().out
    assert said.startswith("Not yet. ")
    return said

"""The exercises of a notebook, for the tests of their checks."""

import re
from pathlib import Path

import nbformat

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"


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


def verdicts(check, name, notebook, cell, capsys, **names):
    """What the check says of the folded solution and of the first attempt: two (answer, text) pairs."""
    sources = cells(notebook)
    for source in (solution(sources[f"{cell}-solution"]), sources[f"{cell}-code"]):
        answer = getattr(check, name)(function(name, source, **names))
        yield answer, capsys.readouterr().out

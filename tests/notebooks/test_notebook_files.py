"""The notebooks as files: what a reader sees before running anything. No kernel runs the notebooks here.

Each check takes a notebook and yields its problems. The last part tests tools/render_notebooks.py.
"""

import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from tools import render_notebooks

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
COMMITTED = sorted([*NOTEBOOKS.glob("*.ipynb"), *NOTEBOOKS.glob("more/*.ipynb")])


def code_cells(notebook):
    """(number, cell, tags) of the code cells that hold code."""
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and cell.source.strip():
            yield number, cell, cell.metadata.get("tags", [])


def check_was_run(notebook):
    counts = [cell.execution_count for _, cell, _ in code_cells(notebook)]
    if not counts or counts != list(range(1, len(counts) + 1)):
        yield f"not run from top to bottom in a fresh kernel: execution counts {counts}"
    if not any(cell.outputs for _, cell, _ in code_cells(notebook)):
        yield "no outputs at all"
    for number, cell, _ in code_cells(notebook):
        if re.search(r"^(print|display)\(", cell.source, re.MULTILINE) and not cell.outputs:
            yield f"cell {number}: prints, but its output is missing"


def check_nothing_went_wrong(notebook):
    for number, cell, tags in code_cells(notebook):
        if "nbval-skip" in tags or "NBVAL_SKIP" in cell.source:
            yield f"cell {number}: skipped in the tests"
        for output in cell.outputs:
            if output.output_type == "error" and "raises-exception" not in tags:
                yield f"cell {number}: failed with {output.ename}"
            if output.get("name") == "stderr" and "nbval-ignore-output" not in tags:
                yield f"cell {number}: printed to stderr"


def check_figures_have_words(notebook):
    for number, cell, _ in code_cells(notebook):
        for output in cell.outputs:
            if "image/png" not in output.get("data", {}):
                continue
            if not output.metadata.get("image/png", {}).get("alt", "").strip():
                yield f"cell {number}: a figure without alt text"
            if output.data.get("text/plain", "<Figure").startswith("<Figure"):
                yield f"cell {number}: a figure without a text beside it"


def links_that_lead_nowhere(notebook, folder):
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)[^)]*\)", prose):
        if not (folder / target).exists():
            yield f"a link that leads nowhere: {target}"


CHECKS = [check_was_run, check_nothing_went_wrong, check_figures_have_words]
CHECKS += [render_notebooks.machine_paths]


def problems_of(notebook):
    return [problem for check in CHECKS for problem in check(notebook)]


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_committed_notebook(path):
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    problems = [*problems_of(notebook), *links_that_lead_nowhere(notebook, path.parent), *render_notebooks.check(path)]
    assert not problems, "\n".join(problems)


PIXEL = "iVBORw0KGgo="


# Rendering.

SHOW = """
from IPython.display import display
import ipywidgets, os
display({"image/png": "PIXEL", "text/plain": "one bar"}, raw=True, metadata={"image/png": {"alt": "One bar"}})
display(ipywidgets.IntSlider())
""".replace("PIXEL", PIXEL)
WORDS = """
print(os.environ["HELPERS_PROGRESS"], flush=True)
print({"b", "a", "c"}, "PYTEST_CURRENT_TEST" in os.environ)
os.path.basename(os.getcwd())
"""


def write(path, *sources):
    metadata = {"tags": ["kept"], "scrolled": True}
    cells = [new_code_cell(source.strip(), metadata=metadata) for source in sources]
    nbformat.write(new_notebook(cells=cells, metadata={"orig_nbformat": 4}), path)
    return path


def test_rendering_twice_gives_the_same_bytes(tmp_path):
    path = write(tmp_path / "example.ipynb", SHOW, WORDS)
    assert render_notebooks.main(["--check", str(path)]) == 1
    assert render_notebooks.main([str(path), "--results", str(tmp_path)]) == 0
    first = path.read_bytes()
    assert render_notebooks.main([str(path)]) == 0
    assert path.read_bytes() == first
    assert render_notebooks.main(["--check", str(path)]) == 0
    assert [file.name for file in tmp_path.iterdir()] == ["example.ipynb"]

    notebook = nbformat.read(path, as_version=4)
    assert list(check_was_run(notebook)) == []
    show, words = notebook.cells
    assert show.metadata == {"tags": ["kept"]}
    assert show.outputs[0].metadata["image/png"]["alt"] == "One bar"
    assert list(show.outputs[1].data) == ["text/plain"]
    assert words.outputs[0].text.startswith("plain\n{") and words.outputs[0].text.endswith("} False\n")
    assert words.outputs[1].data["text/plain"] == f"'{tmp_path.name}'"


@pytest.mark.parametrize(
    "source, problems",
    [
        ("import os\nos._exit(1)", ["died"]),
        pytest.param("raise ValueError('no')", ["ValueError"], marks=pytest.mark.long),
        ("print('/', 'tmp', sep='', end='/x ')\nprint('x' * 600_000)", ["cell 0: machine path", "allowed are"]),
    ],
)
def test_a_notebook_with_a_problem_is_not_written(source, problems, tmp_path, capsys):
    path = write(tmp_path / "example.ipynb", source)
    before = path.read_bytes()
    assert render_notebooks.main([str(path)]) == 1
    errors = capsys.readouterr().err
    assert all(problem in errors for problem in problems)
    assert path.read_bytes() == before

"""The notebooks as files: what a reader sees before running anything. No kernel runs the notebooks here.

Each check takes a notebook and returns its problems, one line each; below, each is shown a notebook
that it must object to. The last part tests tools/render_notebooks.py.
"""

import re
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools import render_notebooks

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
EXPECTED = {"00_start_here.ipynb", "01_baseline.ipynb", "02_data_parallel.ipynb", "03_ddp.ipynb"}
EXPECTED |= {"04_mixed_precision.ipynb", "05_batch_and_accuracy.ipynb", "06_compiler.ipynb"}
EXPECTED |= {"07_npu_migration.ipynb", "08_horovod_api.ipynb"}
EXPECTED |= {"09_several_machines.ipynb", "10_report.ipynb", "11_when_it_breaks.ipynb"}
MAX_LINES = 40  # of a code cell: what fits on a screen
MAX_IN_A_ROW = 2  # code cells without a word between them


def code_cells(notebook):
    """(number, cell, tags) of the code cells that hold code."""
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and cell.source.strip():
            yield number, cell, cell.metadata.get("tags", [])


def check_format(notebook):
    if (notebook.nbformat, notebook.nbformat_minor) < (4, 5):
        yield "older than notebook format 4.5, which has cell ids"
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        yield "its kernel is not python3"
    if "widgets" in notebook.metadata:
        yield "saved widget state, which some viewers refuse to show"
    try:
        nbformat.validate(notebook)
    except nbformat.ValidationError as error:
        yield f"not a valid notebook: {str(error).splitlines()[0]}"


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


def check_rhythm(notebook):
    in_a_row = MAX_IN_A_ROW  # so that the first cell has to be prose
    for number, cell in enumerate(notebook.cells):
        in_a_row = in_a_row + 1 if cell.cell_type == "code" else 0
        if in_a_row > MAX_IN_A_ROW:
            yield f"cell {number}: needs prose before it"
        if cell.cell_type == "code" and len(cell.source.splitlines()) > MAX_LINES:
            yield f"cell {number}: more than {MAX_LINES} lines"
        if not cell.source.strip():
            yield f"cell {number}: empty"
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    turns = len(re.findall(r"^#+ .*your turn", prose, re.MULTILINE | re.IGNORECASE))
    if turns < 2:
        yield f"{turns} headings say 'your turn', at least 2 are wanted"


CHECKS = [
    check_format,
    check_was_run,
    check_nothing_went_wrong,
    check_figures_have_words,
    check_rhythm,
    render_notebooks.machine_paths,
]


def test_the_notebooks_are_there():
    assert EXPECTED <= {path.name for path in NOTEBOOKS.glob("*.ipynb")}


@pytest.mark.parametrize("name", sorted(EXPECTED | {path.name for path in NOTEBOOKS.glob("*.ipynb")}))
def test_committed_notebook(name):
    notebook = nbformat.read(NOTEBOOKS / name, as_version=nbformat.NO_CONVERT)
    problems = [problem for check in CHECKS for problem in check(notebook)]
    assert not problems + render_notebooks.check(NOTEBOOKS / name), "\n".join(problems)


# Each check objects to what it is for.

PIXEL = "iVBORw0KGgo="
ERROR = new_output("error", ename="ZeroDivisionError", evalue="division by zero", traceback=[])


def figure(alt="Bars: DDP is 1.8 times as fast as the baseline", text="DDP 1.8x"):
    metadata = {"image/png": {"alt": alt}} if alt else {}
    return new_output("display_data", data={"image/png": PIXEL, "text/plain": text}, metadata=metadata)


def code(source, *outputs, count=1, tags=()):
    return new_code_cell(source, outputs=list(outputs), execution_count=count, metadata={"tags": list(tags)})


def good_notebook():
    text = new_output("stream", text="2 ranks\n")
    cells = [
        new_markdown_cell("# What is asked"),
        code("ranks = 2\nprint(ranks, 'ranks')", text, count=1),
        code("plot(ranks)", figure(), count=2),
        new_markdown_cell("## Your turn: 4 ranks"),
        code("ranks = 4", count=3),
        new_markdown_cell("## Your turn: no rank"),
        code("0 / 0", ERROR, count=4, tags=["raises-exception"]),
    ]
    return new_notebook(cells=cells, metadata=render_notebooks.METADATA)


def test_a_good_notebook_has_no_problems():
    assert [problem for check in CHECKS for problem in check(good_notebook())] == []


def with_output(notebook, output, tags=()):
    notebook.cells[1].outputs = [nbformat.from_dict(output)]
    notebook.cells[1].metadata.tags = list(tags)


def stream(text, name="stdout"):
    return new_output("stream", name=name, text=text)


PLANTED = {
    "kernel is not python3": lambda n: n.metadata.kernelspec.update(name="mine"),
    "widget state": lambda n: n.metadata.update(widgets={}),
    "older than notebook format": lambda n: n.update(nbformat_minor=4),
    "not a valid notebook": lambda n: n.cells[0].update(outputs=[]),
    "counts [2, 3, 4, 5]": lambda n: [c.update(execution_count=c.execution_count + 1) for c in code_of(n)],
    "counts [None, 2, 3, 4]": lambda n: n.cells[1].update(execution_count=None),
    "no outputs at all": lambda n: [c.update(outputs=[]) for c in code_of(n)],
    "cell 1: prints, but": lambda n: n.cells[1].update(outputs=[]),
    "cell 6: failed with ZeroDivisionError": lambda n: n.cells[6].metadata.update(tags=[]),
    "cell 1: printed to stderr": lambda n: with_output(n, stream("a warning", "stderr")),
    "cell 1: skipped": lambda n: n.cells[1].metadata.update(tags=["nbval-skip"]),
    "cell 4: skipped": lambda n: n.cells[4].update(source="# NBVAL_SKIP\nranks = 4"),
    "cell 2: a figure without alt text": lambda n: n.cells[2].update(outputs=[figure(alt="")]),
    "cell 2: a figure without a text": lambda n: n.cells[2].update(outputs=[figure(text="<Figure size>")]),
    "cell 0: needs prose": lambda n: n.cells.pop(0),
    "cell 3: needs prose": lambda n: n.cells.pop(3),
    "cell 4: more than 40 lines": lambda n: n.cells[4].update(source="ranks = 4\n" * 41),
    "cell 4: empty": lambda n: n.cells[4].update(source=" "),
    "1 headings say 'your turn'": lambda n: n.cells[3].update(source="## Your time\nIt is your turn."),
}
# Put together here, since no file of the project may hold such a path, this one included.
PATHS = ["/" + "root/x", "/" + "home/me", "/" + "tmp/x.py", "/" + "Users/me", "C:" + r"\Users\me", "~/.cache"]
for path in PATHS:
    PLANTED[f"machine path {path}"] = lambda n, path=path: with_output(n, stream(f"['{path}']\n"))


def code_of(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("problem", PLANTED)
def test_a_planted_problem_is_found(problem):
    notebook = good_notebook()
    PLANTED[problem](notebook)
    found = [line for check in CHECKS for line in check(notebook)]
    assert any(problem in line for line in found), found


def test_what_only_looks_like_a_problem():
    notebook = good_notebook()
    with_output(notebook, stream("a warning", "stderr"), tags=["nbval-ignore-output"])
    notebook.cells[0].source += "\nSee https://example.org/home/x, ./tmp/x, and/or root/work/steps."
    assert [problem for check in CHECKS for problem in check(notebook)] == []


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
    assert [*check_format(notebook), *check_was_run(notebook)] == []
    show, words = notebook.cells
    assert show.metadata == {"tags": ["kept"]}
    assert show.outputs[0].metadata["image/png"]["alt"] == "One bar"
    assert list(show.outputs[1].data) == ["text/plain"]
    assert words.outputs[0].text.startswith("plain\n{") and words.outputs[0].text.endswith("} False\n")
    assert words.outputs[1].data["text/plain"] == f"'{tmp_path.name}'"


@pytest.mark.parametrize(
    "source, problem",
    [
        ("raise ValueError('no')", "ValueError"),
        ("import os\nos._exit(1)", "died"),
        ("print('/', 'tmp', sep='', end='/x')", "cell 0: machine path"),
        ("print('x' * 600_000)", "allowed are"),
    ],
)
def test_a_notebook_with_a_problem_is_not_written(source, problem, tmp_path, capsys):
    path = write(tmp_path / "example.ipynb", source)
    before = path.read_bytes()
    assert render_notebooks.main([str(path)]) == 1
    captured = capsys.readouterr()
    assert problem in captured.err and "not written" in captured.out
    assert path.read_bytes() == before


def test_a_stream_cut_in_pieces_is_put_together():
    pieces = [stream("a"), stream("b"), figure(), stream("c"), stream("d", "stderr")]
    outputs = render_notebooks.canonical_outputs(pieces, 1)
    assert [output.get("text") for output in outputs] == ["ab", None, "c", "d"]

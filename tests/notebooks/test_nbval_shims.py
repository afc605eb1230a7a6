"""conftest.py mends nbval."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

ROOT = Path(__file__).resolve().parents[2]
ERROR = new_output("error", ename="ValueError", evalue="no", traceback=[])
SHOWN = new_output("stream", text="from a child\n")
# The sleep: ipykernel takes what a child printed from a pipe, now and then after the cell has ended.
CHILD = "import subprocess, time\n_ = subprocess.run(['echo', 'from a child'])\ntime.sleep(3)"


def code(source, outputs=(), tags=()):
    return new_code_cell(source, outputs=list(outputs), execution_count=1, metadata={"tags": list(tags)})


NOTEBOOKS = {
    "alive": [
        code("1 + 1;"),
        code(CHILD, [SHOWN]),
        code("import atexit, pathlib\nnothing = atexit.register(pathlib.Path('left').touch)"),
        code("raise ValueError('no')", [ERROR], tags=["raises-exception"]),
        code("%misspelt", tags=["nbval-ignore-output"]),
        code("import sys\nprint('a warning', file=sys.stderr)"),
    ],
    "dies": [code("import os\nos._exit(1)", tags=["nbval-ignore-output"])],
}


def run_pytest(folder, *options, **environment):
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--nbval", *options],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=900,
    )


@pytest.fixture(scope="module")
def nbval(tmp_path_factory):
    """(the problem or None of each cell in turn, the folder of the notebooks)"""
    folder = tmp_path_factory.mktemp("nbval")
    for name, cells in NOTEBOOKS.items():
        nbformat.write(new_notebook(cells=cells), folder / f"{name}.ipynb")
    (folder / "pytest.ini").write_text("[pytest]\n")  # keeps this project's settings out
    options = ["--nbval-current-env", "--nbval-cell-timeout=300", "--junit-xml=report.xml", "-p", "conftest"]
    run_pytest(folder, *options, ".", PYTHONPATH=str(ROOT))
    problems = []
    for case in ElementTree.parse(folder / "report.xml").iter("testcase"):
        trouble = [child.get("message") for child in case if child.tag in ("failure", "error")]
        problems.append(trouble[0] if trouble else None)
    assert len(problems) == sum(map(len, NOTEBOOKS.values()))
    return problems, folder


@pytest.mark.long
def test_each_mend_mends_what_nbval_does(nbval):
    (semicolon, child, handlers, raises, magic, warns, dead), folder = nbval
    assert semicolon is None, "a semicolon silences the last expression"
    assert child is None, "what child processes print is part of the output"
    assert handlers is None and (folder / "left").exists(), "the kernel runs its exit handlers"
    assert raises is None, "a cell that is tagged to raise may raise"
    assert "misspelt" in (magic or ""), "a misspelt magic fails"
    assert warns is None, "a warning on stderr is no difference"
    assert "the kernel died" in (dead or ""), "a dead kernel fails the cell before its time is up"

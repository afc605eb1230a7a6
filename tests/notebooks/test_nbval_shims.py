"""conftest.py mends nbval, and tests/sanitize.cfg says what of an output is not compared."""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from nbval.plugin import get_sanitize_patterns

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


def test_each_mend_mends_what_nbval_does(nbval):
    (semicolon, child, handlers, raises, magic, warns, dead), folder = nbval
    assert semicolon is None, "a semicolon silences the last expression"
    assert child is None, "what child processes print is part of the output"
    assert handlers is None and (folder / "left").exists(), "the kernel runs its exit handlers"
    assert raises is None, "a cell that is tagged to raise may raise"
    assert "misspelt" in (magic or ""), "a misspelt magic fails"
    assert warns is None, "a warning on stderr is no difference"
    assert "the kernel died" in (dead or ""), "a dead kernel fails the cell before its time is up"


@pytest.mark.long
def test_settings_are_those_of_the_root_beside_a_notebook(tmp_path):
    """The project's own configuration, with pytest started beside the notebook."""
    for name in ("conftest.py", "pyproject.toml", "tests/sanitize.cfg", "tools/render_notebooks.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    source = (
        "import os, sys\nprint(sys.executable == os.environ['EXPECTED'], os.environ['NBVAL'], "
        "os.environ['HELPERS_PROGRESS'], os.environ['PYTHONHASHSEED'])\n"
        "print('helpers-results-' in os.environ['HELPERS_RESULTS'], f'{os.getpid()}.5 s')"
    )
    cell = code(source, [new_output("stream", text="True 1 plain 0\nTrue 1.25 s\n")])
    notebook = new_notebook(cells=[cell], metadata={"kernelspec": {"name": "no-such", "display_name": ""}})
    (tmp_path / "notebooks").mkdir()
    nbformat.write(notebook, tmp_path / "notebooks" / "example.ipynb")
    run = run_pytest(tmp_path / "notebooks", "example.ipynb", EXPECTED=sys.executable)
    assert run.returncode == 0 and "1 passed" in run.stdout, run.stdout + run.stderr


def test_the_reader_s_results_are_out_of_reach():
    assert Path(os.environ["HELPERS_RESULTS"]).name.startswith("helpers-results-")


TIMES = [  # what differs from run to run
    ("step   12.3 s", "step    9.31 s"),
    ("12 ms a step", "9.5 ms a step"),
    ("1,234.5 images/s", "99 images/s"),
    ("2 ranks: 1.83\u00d7 as fast", "2 ranks: 1.7x as fast"),
    ("at 2025-01-31T12:34:56.789", "at 2026-02-01 00:00"),
    ("pid 12 at 127.0.0.1:4567", "pid 3456 at 127.0.0.1:89"),
    ("<object at 0x7f1234567>", "<object at 0x7fabcdef01>"),
]
RESULTS = [
    ("accuracy 0.91", "accuracy 0.92"),
    ("20 steps on 2 ranks", "21 steps on 2 ranks"),
    ("2 x 64 px", "2 x 32 px"),
    ("loss 1.2345 after 640 samples", "loss 1.2346 after 640 samples"),
    ("step 12.3 s", "step is nan s"),
    ("difference 1.5e-07", "difference 1.6e-07"),
    ("44.7 MB of gradients", "44.8 MB of gradients"),
]


@pytest.mark.parametrize("one, other", TIMES + RESULTS)
def test_only_results_are_compared(one, other):
    assert (sanitized(one) == sanitized(other)) == ((one, other) in TIMES)


def sanitized(text):
    patterns = get_sanitize_patterns((ROOT / "tests" / "sanitize.cfg").read_text(encoding="ascii"))
    assert len(patterns) > 5
    for pattern, replacement in patterns:
        text = re.sub(pattern, replacement, text)
    return text

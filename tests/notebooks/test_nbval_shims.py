"""conftest.py mends nbval: each defect is shown without the mend and gone with it.

When a test "without" fails after an update of nbval, nbval has been repaired: drop that mend.
"""

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
# The sleep: ipykernel takes what a child printed from a pipe, now and then after the cell has ended.
CHILD = "import subprocess, time\n_ = subprocess.run(['echo', 'from a child'])\ntime.sleep(1)"
SHOWN = new_output("stream", text="from a child\n")
ERROR = new_output("error", ename="ValueError", evalue="no", traceback=[])


def code(source, outputs=(), tags=()):
    return new_code_cell(source, outputs=list(outputs), execution_count=1, metadata={"tags": list(tags)})


def run_nbval(folder, cells, *options, mended):
    """Run a notebook of `cells` with nbval in `folder`; returns (problem or None, seconds) of each cell."""
    nbformat.write(new_notebook(cells=cells), folder / "example.ipynb")
    (folder / "pytest.ini").write_text("[pytest]\n")  # keeps this project's settings out
    if mended:
        options = ("-p", "conftest", *options)
    subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--junit-xml=report.xml", *options, "."],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        timeout=60,
    )
    cases = ElementTree.parse(folder / "report.xml").iter("testcase")
    problems = []
    for case in cases:
        trouble = [child for child in case if child.tag in ("failure", "error")]
        problems.append((trouble[0].get("message") if trouble else None, float(case.get("time"))))
    assert len(problems) == len(cells)
    return problems


@pytest.fixture(scope="module", params=[False, True], ids=["without", "with"])
def strict(request, tmp_path_factory):
    """Compared outputs: cells that are right as they are committed."""
    folder = tmp_path_factory.mktemp("strict")
    cells = [
        code("1 + 1;"),
        code(CHILD, [SHOWN]),
        code("import atexit, pathlib\nnothing = atexit.register(pathlib.Path('left').touch)"),
        code("raise ValueError('no')", [ERROR], tags=["raises-exception"]),
    ]
    problems = run_nbval(folder, cells, "--nbval", "--nbval-current-env", mended=request.param)
    return request.param, [problem for problem, _ in problems], folder


def test_a_semicolon_silences_the_last_expression(strict):
    mended, problems, _ = strict
    assert (problems[0] is None) == mended


def test_what_child_processes_print_is_part_of_the_output(strict):
    mended, problems, _ = strict
    assert (problems[1] is None) == mended


def test_the_kernel_runs_its_exit_handlers(strict):
    mended, problems, folder = strict
    assert problems[2] is None
    assert (folder / "left").exists() == mended


def test_a_cell_that_is_tagged_to_raise_may_raise(strict):
    _, problems, _ = strict
    assert problems[3] is None


@pytest.fixture(scope="module", params=[False, True], ids=["without", "with"])
def lax(request, tmp_path_factory):
    """Outputs not compared: two cells that are wrong."""
    cells = [code("%misspelt"), code("import os\nos._exit(1)")]
    mended = request.param
    timeout = 30 if mended else 3  # seconds: without the mend, the test waits for this to pass
    options = ["--nbval-lax", "--nbval-current-env", f"--nbval-cell-timeout={timeout}"]
    return mended, run_nbval(tmp_path_factory.mktemp("lax"), cells, *options, mended=mended)


def test_a_misspelt_magic_fails(lax):
    mended, [(problem, _), _] = lax
    assert (problem is not None) == mended
    assert not mended or "misspelt" in problem


def test_a_dead_kernel_fails_the_cell_at_once(lax):
    mended, [_, (problem, seconds)] = lax
    if mended:
        assert "the kernel died" in problem and seconds < 15
    else:
        assert seconds >= 3


def test_settings_are_the_same_from_every_folder(tmp_path):
    """The project's own configuration, with pytest started at the root and beside the notebook."""
    project = tmp_path / "a project"
    for name in ("tests", "tools", "notebooks"):
        (project / name).mkdir(parents=True)
    for name in ("conftest.py", "pyproject.toml", "tests/sanitize.cfg", "tools/render_notebooks.py"):
        (project / name).write_text((ROOT / name).read_text())
    source = (
        "import os, sys\nprint(sys.executable == os.environ['EXPECTED'], os.environ['NBVAL'], "
        "os.environ['HELPERS_PROGRESS'], os.environ['PYTHONHASHSEED'])\n"
        "print('helpers-results-' in os.environ['HELPERS_RESULTS'], f'{os.getpid()}.5 s')"
    )
    cell = code(source, [new_output("stream", text="True 1 plain 0\nTrue 1.25 s\n")])
    notebook = new_notebook(cells=[cell], metadata={"kernelspec": {"name": "no-such", "display_name": ""}})
    nbformat.write(notebook, project / "notebooks" / "example.ipynb")
    environment = {**os.environ, "EXPECTED": sys.executable}
    for folder, target in [(".", "notebooks"), ("notebooks", "."), (".", "notebooks/example.ipynb")]:
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--nbval", target],
            cwd=project / folder, env=environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert run.returncode == 0 and "1 passed" in run.stdout, run.stdout + run.stderr


def test_the_reader_s_results_are_out_of_reach():
    assert Path(os.environ["HELPERS_RESULTS"]).name.startswith("helpers-results-")


@pytest.mark.parametrize(
    "one, other",
    [
        ("step   12.3 s", "step    9.31 s"),
        ("12 ms a step", "9.5 ms a step"),
        ("1,234.5 images/s", "99 images/s"),
        ("2 ranks: 1.83\u00d7 as fast", "2 ranks: 1.7x as fast"),
        ("at 2025-01-31T12:34:56.789", "at 2026-02-01 00:00"),
        ("pid 12 at 127.0.0.1:4567", "pid 3456 at 127.0.0.1:89"),
        ("<object at 0x7f12345678>", "<object at 0x7fabcdef01>"),
    ],
)
def test_what_differs_from_run_to_run_is_not_compared(one, other):
    assert sanitized(one) == sanitized(other)


@pytest.mark.parametrize(
    "one, other",
    [
        ("accuracy 0.91", "accuracy 0.92"),
        ("20 steps on 2 ranks", "21 steps on 2 ranks"),
        ("loss 1.2345 after 640 samples", "loss 1.2346 after 640 samples"),
        ("largest difference 1.5e-07", "largest difference 1.6e-07"),
        ("44.7 MB of gradients", "44.8 MB of gradients"),
        ("2 x 64 images", "2 x 32 images"),
        ("step 12.3 s", "step is nan s"),
    ],
)
def test_results_are_compared(one, other):
    assert sanitized(one) != sanitized(other)


def sanitized(text):
    patterns = get_sanitize_patterns((ROOT / "tests" / "sanitize.cfg").read_text(encoding="ascii"))
    assert len(patterns) > 5
    for pattern, replacement in patterns:
        text = re.sub(pattern, replacement, text)
    return text

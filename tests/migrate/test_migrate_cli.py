"""`python -m platforms.migrate`: what it prints, what it writes, and when it writes nothing at all."""

import os
import subprocess
import sys

import pytest

from platforms.migrate import migrate
from platforms.migrate.cli import main

SOURCE = "import torch\r\nx.cuda()\r\n"
RESULT = migrate(SOURCE).result
PLAIN = "print(1)\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with two scripts, of which one needs a change; it is the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/main.py").write_bytes(SOURCE.encode())
    (tmp_path / "scripts/plain.py").write_bytes(PLAIN.encode())
    return tmp_path


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_without_an_option_it_shows_diff_and_report_and_writes_nothing(folder, capfdbinary):
    before = contents(folder)
    assert main(["scripts/main.py"]) == 0
    out = capfdbinary.readouterr().out.decode()
    assert "+x.npu()\r\n" in out and "scripts/main.py: 2 lines written and 1 taken out" in out
    assert contents(folder) == before
    assert main(["--diff", "scripts/main.py", "scripts/plain.py"]) == 0
    diff = capfdbinary.readouterr().out
    assert b"Only you can choose" not in diff and b"plain" not in diff
    subprocess.run(["git", "apply", "-p0"], input=diff, cwd=folder, check=True, timeout=300)
    assert contents(folder)["scripts/main.py"] == RESULT.encode()


def test_out_writes_the_results_and_leaves_the_sources(folder):
    (folder / "scripts/main.py").chmod(0o755)
    before = contents(folder)
    assert main(["scripts/main.py", "scripts/plain.py", "--out", "done/here"]) == 0
    made = {"done/here/main.py": RESULT.encode(), "done/here/plain.py": PLAIN.encode()}
    assert contents(folder) == before | made
    assert os.access("done/here/main.py", os.X_OK) and not os.access("done/here/plain.py", os.X_OK)


def test_out_replaces_nothing_that_differs_unless_forced(folder, capsys):
    (folder / "done").mkdir()
    (folder / "done/main.py").write_text("mine")
    before = contents(folder)
    given = ["scripts/plain.py", "scripts/main.py", "--out", "done"]
    assert main(given) == 2
    error = capsys.readouterr().err
    assert os.path.join("done", "main.py") in error and "--force" in error
    assert contents(folder) == before  # plain.py was not written either
    assert main([*given, "--force"]) == 0
    assert main(given) == 0  # the same again is no difference
    assert contents(folder)["done/main.py"] == RESULT.encode()
    assert not list((folder / "done").rglob(".*"))


BAD = {
    "missing": (None, "bad.py"),
    "not UTF-8": (b"import torch\n\xff\n", "bad.py:2: "),
    "Python 2": (b"import torch\n\nprint 'cuda'\n", "bad.py:3: "),
}


@pytest.mark.parametrize("where", ["--out done", "--diff"])
@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_ends_with_status_2_and_writes_nothing(folder, capsys, case, where):
    raw, message = BAD[case]
    if raw is not None:
        (folder / "bad.py").write_bytes(raw)
    before = contents(folder)
    assert main(["scripts/main.py", "bad.py", *where.split()]) == 2
    out, error = capsys.readouterr()
    assert message in error and out == "" and len(error.splitlines()) == 1
    assert contents(folder) == before


def test_what_cannot_be_done_is_said(folder, capsys):
    (folder / "a.ipynb").write_text('{"cells": [{"cell_type": "code", "source": ["x.cuda()"]}]}')
    before = contents(folder)
    same = ["scripts/main.py", "scripts/main.py/../main.py"]
    for given in (
        ["scripts/main.py", "--out", "scripts"],
        ["scripts", "--out", "done"],
        [*same, "--out", "done"],
        ["a.ipynb"],
    ):
        assert main(given) == 2
    assert "a.ipynb: this is a notebook" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["scripts/main.py", "--diff", "--out", "done"])
    assert contents(folder) == before


def test_importing_it_is_light():
    code = "import sys, platforms.migrate, platforms.migrate.cli; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)

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
    """A folder with two scripts that need a change and some that do not; it is the working folder."""
    monkeypatch.chdir(tmp_path)
    files = {"main.py": SOURCE, "net/model.py": SOURCE, "net/plain.py": PLAIN, "notes.txt": "torch.cuda"}
    files |= {".hidden/a.py": SOURCE, "__pycache__/b.py": SOURCE, "env/pyvenv.cfg": "", "env/lib/c.py": SOURCE}
    for name, text in files.items():
        path = tmp_path / "scripts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return tmp_path


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_without_an_option_it_shows_diff_and_report_and_writes_nothing(folder, capfdbinary):
    before = contents(folder)
    assert main(["scripts/main.py"]) == 0
    out = capfdbinary.readouterr().out.decode()
    assert "+x.npu()\r\n" in out and "scripts/main.py: 2 lines written and 1 taken out" in out
    assert contents(folder) == before


def test_the_diff_of_a_folder_applies(folder, capfdbinary):
    assert main(["--diff", "scripts"]) == 0
    diff = capfdbinary.readouterr().out
    assert b"Only you can choose" not in diff and b"hidden" not in diff and b"plain" not in diff and b"env" not in diff
    subprocess.run(["git", "apply", "-p0"], input=diff, cwd=folder, check=True, timeout=300)
    assert contents(folder)["scripts/main.py"] == contents(folder)["scripts/net/model.py"] == RESULT.encode()


def test_out_writes_all_scripts_of_a_folder_and_leaves_the_sources(folder):
    before = contents(folder)
    assert main(["scripts", "--out", "done/here"]) == 0
    after = contents(folder)
    new = {name: after[name] for name in after.keys() - before.keys()}
    assert {name: after[name] for name in before} == before
    done = {"main.py": RESULT, "net/model.py": RESULT, "net/plain.py": PLAIN}
    assert new == {f"done/here/{name}": text.encode() for name, text in done.items()}


def test_out_replaces_nothing_that_differs_unless_forced(folder, capsys):
    (folder / "done/net").mkdir(parents=True)
    (folder / "done/net/model.py").write_text("mine")
    before = contents(folder)
    assert main(["scripts", "--out", "done"]) == 2
    error = capsys.readouterr().err
    assert os.path.join("done", "net", "model.py") in error and "--force" in error
    assert contents(folder) == before  # main.py was not written either
    assert main(["scripts", "--out", "done", "--force"]) == 0
    assert main(["scripts", "--out", "done"]) == 0  # the same again is no difference
    assert contents(folder)["done/net/model.py"] == RESULT.encode()
    assert not list((folder / "done").rglob(".*"))


def test_out_into_the_folder_of_the_source_is_refused(folder):
    before = contents(folder)
    assert main(["scripts/main.py", "--out", "scripts"]) == 2
    assert contents(folder) == before


BAD = {
    "missing": (None, "bad.py"),
    "not UTF-8": (b"import torch\n\xff\n", "bad.py:2: "),
    "Python 2": (b"import torch\n\nprint 'cuda'\n", "bad.py:3: "),
    "not closed": (b"f(\n", "bad.py:1: "),
}


@pytest.mark.parametrize("where", ["--out done", "--diff", ""])
@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_ends_with_status_2_and_writes_nothing(folder, capsys, case, where):
    raw, message = BAD[case]
    if raw is not None:
        (folder / "bad.py").write_bytes(raw)
    before = contents(folder)
    assert main(["scripts", "bad.py", *where.split()]) == 2
    out, error = capsys.readouterr()
    assert message in error and out == "" and len(error.splitlines()) == 1
    assert contents(folder) == before


def test_a_bad_file_of_a_folder_is_named_and_left_out(folder, capsys):
    (folder / "scripts/bad.py").write_text("print 'cuda'\n")
    (folder / "scripts/main.py").chmod(0o755)
    assert main(["scripts", "--out", "done"]) == 1
    assert "left out: scripts/bad.py:1: " in capsys.readouterr().err
    assert sorted(it.name for it in (folder / "done").rglob("*.py")) == ["main.py", "model.py", "plain.py"]
    assert os.access(folder / "done/main.py", os.X_OK) and not os.access(folder / "done/net/model.py", os.X_OK)


def test_a_notebook_is_refused(folder, capsys):
    (folder / "a.ipynb").write_text('{"cells": [{"cell_type": "code", "source": ["x.cuda()"]}]}')
    assert main(["a.ipynb"]) == 2
    assert "a.ipynb: this is a notebook" in capsys.readouterr().err


def test_what_cannot_be_done_is_said(folder, capsys):
    for arguments, message in {
        ("scripts/main.py", "scripts/main.py", "--out", "done"): "two of the scripts",
        ("scripts/.hidden/none",): "none",
    }.items():
        assert main([*arguments]) == 2
        assert message in capsys.readouterr().err
    (folder / "empty").mkdir()
    assert main(["empty"]) == 2
    assert "no .py file" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["scripts", "--diff", "--out", "done"])


def test_the_modern_style(folder, capfdbinary):
    (folder / "amp.py").write_text("import torch\ntorch.cuda.amp.autocast()\n")
    assert main(["--diff", "--style=modern", "amp.py"]) == 0
    assert b'+torch.amp.autocast("npu")\n' in capfdbinary.readouterr().out


def test_importing_it_is_light():
    code = "import sys, platforms.migrate, platforms.migrate.cli; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)

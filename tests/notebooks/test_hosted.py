"""The first cell of a notebook in a kernel without the kit, as a hosted service starts it."""

import json
import re
import subprocess
import sys
import venv
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

ROOT = Path(__file__).resolve().parent.parent.parent
NOTEBOOKS = [path for folder in ("", "more") for path in sorted((ROOT / "notebooks" / folder).glob("[0-9]*.ipynb"))]
USE = """
import os, helpers, torch
print("kit:", os.path.relpath(helpers.__file__, FOLDER))
print("torch:", torch.__version__, torch.__file__)
print("ranks:", helpers.launch(lambda: os.environ["RANK"], 2, timeout=600))
"""


def first_cell(notebook):
    cells = json.loads(notebook.read_text())["cells"]
    return next("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def test_every_notebook_begins_with_the_same_cell_which_fetches_the_kit():
    assert len(NOTEBOOKS) > 10 and "HELPERS_SOURCE" in first_cell(NOTEBOOKS[0])
    assert {first_cell(notebook) for notebook in NOTEBOOKS} == {first_cell(NOTEBOOKS[0])}


def test_a_cell_that_does_not_know_who_publishes_the_kit_fetches_nothing(tmp_path):
    done = run_without_the_kit(first_cell(NOTEBOOKS[0]), tmp_path)
    assert done.returncode == 1 and "%env HELPERS_SOURCE=https://github.com/NAME/training-helpers" in done.stderr
    assert not any(tmp_path.iterdir())


def test_the_command_that_writes_the_account_into_all_files(tmp_path):
    page = (ROOT / "docs" / "project" / "publish.md").read_text()
    command = re.search(r"^git grep .* OWNER/ .*my-account.*$", page, re.MULTILINE)[0]
    texts = {"publish.md": page, "a.ipynb": NOTEBOOKS[0].read_text()}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    for name, text in texts.items():
        assert (tmp_path / name).read_text() == text.replace("OWNER/", "my-account/") != text, name


def run_without_the_kit(cell, folder):
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", cell],
        cwd=folder,
        env={"PATH": f"{folder}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def hosted(tmp_path):
    """A Python of its own with the packages that are installed here, except for the kit."""
    venv.create(tmp_path / "python", symlinks=True, with_pip=False)
    python = tmp_path / "python" / "bin" / "python"
    lent = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    # Plain lines of a .pth file do not run the .pth files in those folders, through which the kit is found here.
    (site,) = (tmp_path / "python" / "lib").glob("python*/site-packages")
    (site / "lent.pth").write_text("".join(path + "\n" for path in lent))
    for needed in metadata.requires("torch"):  # hosted services have it, where tools/bootstrap.sh may leave it out
        if (found := re.match(r"triton\W+([\d.]+)", needed)) and find_spec("triton") is None:
            (site / f"triton-{found[1]}.dist-info").mkdir()
            about = f"Metadata-Version: 2.1\nName: triton\nVersion: {found[1]}\n"
            (site / f"triton-{found[1]}.dist-info" / "METADATA").write_text(about)
    return python


def say(client, code):
    """What a cell prints; an assertion if it fails."""
    lines = []
    reply = client.execute_interactive(
        code, timeout=900, output_hook=lambda message: lines.append(message["content"].get("text", ""))
    )
    assert reply["content"]["status"] == "ok", "\n".join([*lines, *reply["content"].get("traceback", ())])
    return "".join(lines)


@pytest.mark.long
def test_the_first_cell_fetches_the_kit_and_leaves_torch_alone(hosted, tmp_path):
    import torch

    source, here = tmp_path / "source", tmp_path / "here"
    here.mkdir()
    subprocess.run(["git", "clone", "--quiet", "--depth=1", ROOT.as_uri(), source], check=True)
    environment = {
        "PATH": f"{hosted.parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "HELPERS_SOURCE": source.as_uri(),
        "HELPERS_RESULTS": str(tmp_path / "results"),
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads this 0 as: build without isolation
    }
    kernels = tmp_path / ".local/share/jupyter/kernels/hosted"
    kernels.mkdir(parents=True)
    command = [str(hosted), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernels / "kernel.json").write_text(json.dumps({"argv": command, "display_name": "hosted", "language": "python"}))
    specs = KernelSpecManager(kernel_dirs=[str(kernels.parent)])
    manager = KernelManager(kernel_name="hosted", kernel_spec_manager=specs)
    manager.start_kernel(cwd=str(here), env=environment)
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=600)
        assert say(client, "import importlib.util; print(importlib.util.find_spec('helpers'))").strip() == "None"
        cell = first_cell(NOTEBOOKS[0])
        assert "the kit is installed" in say(client, cell)
        said = say(client, f"FOLDER = {str(here)!r}\n{USE}")
        assert "kit: training-helpers/helpers/__init__.py" in said
        assert f"torch: {torch.__version__} {torch.__file__}" in said and "ranks: ['0', '1']" in said
        assert say(client, "print(os.getcwd())").strip() == str(here / "training-helpers" / "notebooks")
        assert "install" not in say(client, cell)  # the second time it does nothing
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)

"""tools/bootstrap.sh with stand-ins for Python and uv, so that nothing is installed."""

import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Makes environments that hold itself, and answers everything else as a real Python does.
PYTHON = f"""#!/bin/sh
case "$1 $2" in
    "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && echo venv >>"$CALLS" ;;
    "-m pip") echo "pip $*" >>"$CALLS" && exit "${{PIP_FAILS:-0}}" ;;
    *) exec "{sys.executable}" "$@" ;;
esac
"""
UV = """#!/bin/sh
echo "uv $*" >>"$CALLS"
case "$*" in *-r*) [ -z "${UV_WAITS:-}" ] || sleep 60 ;; esac
[ "$1" = --version ] || exit "${UV_FAILS:-0}"
"""
NOT_THERE = "#!/bin/sh\nexit 127\n"  # what a version manager leaves on PATH; hides the system's program
NOTHING = (0, "", "")  # bootstrap has returned without output or calls
RESPONDS = "*) exec"  # where PYTHON runs a real Python


class Clone:
    """A project folder with a space in its name, and the stand-ins."""

    def __init__(self, folder):
        self.root = folder / "a clone"
        (self.root / "tools").mkdir(parents=True)
        (self.root / "helpers").mkdir()
        pins = [path.name for path in ROOT.glob("requirements*.txt")]
        for name in ("pyproject.toml", *pins, "tools/bootstrap.sh", "tools/choose_torch.py", "helpers/releases.py"):
            shutil.copy(ROOT / name, self.root / name)
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.calls = folder / "calls"
        linux = "#!/bin/sh\necho Linux x86_64\n"  # torch_xla has packages for that
        for name, text in {"python3": PYTHON, "uv": UV, "uname": linux, "nvidia-smi": NOT_THERE}.items():
            self.add(name, text)
        self.python = self.root / ".venv" / "bin" / "python"

    def add(self, name, text):
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def change(self, file):
        with open(self.root / file, "a") as text:
            text.write("# changed\n")

    def start(self, *arguments, **environment):
        """Start the bootstrap in another folder, as `make -C` would, with nothing on PATH but the system's tools."""
        system = {"PATH": f"{self.bin}:/usr/bin:/bin", "CALLS": str(self.calls), "HOME": str(self.root)}
        self.calls.write_text("")
        command = ["sh", str(self.root / "tools" / "bootstrap.sh"), *arguments]
        pipes = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return subprocess.Popen(command, cwd=self.bin, env=system | environment, start_new_session=True, **pipes)

    def bootstrap(self, *arguments, **environment):
        """(exit status, its output, the programs it called)"""
        process = self.start(*arguments, **environment)
        output, _ = process.communicate(timeout=300)
        return process.returncode, output, self.calls.read_text()

    def constraints(self, venv=".venv"):
        return (self.root / venv / "constraints.txt").read_text().split()


@pytest.fixture
def clone(tmp_path):
    return Clone(tmp_path)


@pytest.fixture
def made(clone):
    """A clone with its .venv."""
    status, output, clone.first_calls = clone.bootstrap()
    assert status == 0 and "making .venv" in output
    return clone


def test_changed_pins_are_installed_into_the_same_environment_and_a_moved_one_is_made_again(made):
    uv = "uv pip install --python .venv/bin/python --compile-bytecode"
    assert f"{uv} --torch-backend=cpu -r .venv/pins.txt" in made.first_calls  # there is no GPU
    assert not re.search("^(nvidia|triton)", (made.root / ".venv/pins.txt").read_text(), re.MULTILINE)
    assert "--no-deps --no-build-isolation -e ." in made.first_calls
    assert made.bootstrap() == NOTHING
    for file in ("pyproject.toml", "requirements.txt"):
        made.change(file)
        status, _, calls = made.bootstrap()
        assert status == 0 and "-r .venv/pins.txt" in calls and "venv\n" not in calls
        assert made.bootstrap() == NOTHING
    made.root = made.root.rename(made.root.with_name("another clone"))
    assert "venv\n" in made.bootstrap()[2]


def test_an_interrupted_installation_is_started_again(clone):
    process = clone.start(UV_WAITS="1")
    while "-r .venv/pins.txt" not in clone.calls.read_text():
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    (clone.root / ".venv" / "half").touch()
    status, _, calls = clone.bootstrap()
    assert status == 0 and "venv\n" in calls and not (clone.root / ".venv" / "half").exists()


@pytest.mark.parametrize(
    "which, tried",
    [((), [".venv/pins.txt"] * 2), (("xla",), ["requirements-xla.txt"]), (("site",), ["requirements-site.txt"])],
)
def test_a_failed_installation_is_an_error_not_trusted_and_not_repeated_by_another_installer(clone, which, tried):
    """Only for torch without CUDA there is a second source."""
    status, output, calls = clone.bootstrap(*which, UV_FAILS="1")
    assert status == 1 and "could not be installed" in output and "pip -m pip" not in calls
    assert re.findall(r"-r (\S+)", calls) == tried
    status, _, calls = clone.bootstrap(*which)
    assert status == 0 and "venv\n" in calls


def test_without_pytorchs_index_torch_comes_from_pypi_without_triton(clone):
    clone.add("uv", UV.replace('"$*" in', '"$*" in *--torch-backend*) exit 2 ;;'))
    status, output, calls = clone.bootstrap()
    assert status == 0 and "comes from PyPI" in output and "--no-deps -r .venv/pins.txt" in calls
    pins = (clone.root / ".venv/pins.txt").read_text()
    assert "nvidia-cudnn" in pins and "\ntriton" not in pins


def test_a_full_disk_is_said_before_anything_is_made(clone):
    clone.add("df", "#!/bin/sh\nprintf 'Filesystem\\n/dev/x 9 9 1500000 9%% /\\n'\n")
    status, output, calls = clone.bootstrap()
    assert (
        status == 1 and "1 GB of free disk" in output and not (clone.root / ".venv").exists() and "install" not in calls
    )


def test_an_environment_of_the_reader_is_not_touched(clone):
    (clone.root / ".venv").mkdir()
    status, _, calls = clone.bootstrap()
    assert status == 1 and "install" not in calls and list((clone.root / ".venv").iterdir()) == []


WITHOUT_ENSUREPIP = PYTHON.replace(RESPONDS, "*ensurepip*) exit 1 ;;\n    *) exec")


@pytest.mark.parametrize(
    "programs, arguments, python, message",
    [
        ({"old": "#!/bin/sh\nexit 1\n"}, (), "old", "'old'"),
        ({"uv": NOT_THERE, "debian": WITHOUT_ENSUREPIP}, (), "debian", "apt install python3-venv"),
        ({"uname": "#!/bin/sh\necho Darwin arm64\n"}, ("xla",), "python3", "Darwin arm64"),
        ({}, ("tpu",), "python3", "'tpu'"),
    ],
)
def test_what_cannot_be_made_is_refused_before_anything_is_made(clone, programs, arguments, python, message):
    for name, text in programs.items():
        clone.add(name, text)
    status, output, calls = clone.bootstrap(*arguments, PYTHON=python)
    assert status == 1 and message in output and "install" not in calls
    assert not any(path.name.startswith(".venv") for path in clone.root.iterdir())


# The XLA environment


# Which torch


def test_a_python_with_torch_lends_it_and_only_the_rest_is_installed(clone):
    installed = importlib.metadata.version("torch")
    status, output, calls = clone.bootstrap(PYTHON=str(clone.bin / "python3"))
    assert status == 0 and f"using torch {installed} of {sys.executable}" in output
    assert clone.constraints()[0] == f"torch=={installed}"
    assert "-c .venv/constraints.txt -e .[vision,test]" in calls and "uv pip" not in calls and "-r " not in calls
    assert (clone.root / ".venv" / "lender").read_text().strip() == sys.executable
    assert clone.bootstrap() == NOTHING == clone.bootstrap(PYTHON=str(clone.bin / "python3"))


@pytest.mark.parametrize(
    "card, constraints",
    [
        ("NVIDIA H200, 580.65.06, 9.0", []),
        ("NVIDIA H100, 550.90.07, 9.0", ["torch==2.10.*"]),
        ("Tesla V100-SXM2-16GB, 580.65.06, 7.0", ["torch==2.10.*"]),
        ("NVIDIA H100, 550.90.07, 9.0\nTesla P100-PCIE-16GB, 550.90.07, 6.0", ["torch==2.7.*"]),
    ],
)
def test_the_newest_torch_that_the_driver_and_the_card_can_run(clone, card, constraints):
    clone.add("nvidia-smi", f"#!/bin/sh\necho '{card}'\n")
    status, _, calls = clone.bootstrap()
    assert status == 0 and clone.constraints() == constraints
    assert ("-c .venv/constraints.txt" in calls) == bool(constraints)

"""tools/bootstrap.sh with stand-ins for Python and uv, so that nothing is installed."""

import importlib.metadata
import os
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
exit "${UV_FAILS:-0}"
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
        for name in (
            "pyproject.toml",
            "requirements.txt",
            "requirements-xla.txt",
            "requirements-site.txt",
            "tools/bootstrap.sh",
            "tools/choose_torch.py",
            "helpers/releases.py",
        ):
            shutil.copy(ROOT / name, self.root / name)
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.calls = folder / "calls"
        self.add("python3", PYTHON)
        self.add("uv", UV)
        self.add("uname", "#!/bin/sh\necho Linux x86_64\n")  # torch_xla has packages for that
        self.add("nvidia-smi", NOT_THERE)
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
        return subprocess.Popen(
            ["sh", str(self.root / "tools" / "bootstrap.sh"), *arguments],
            cwd=self.bin,
            env=system | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def bootstrap(self, *arguments, **environment):
        """(exit status, its output, the programs it called)"""
        process = self.start(*arguments, **environment)
        output, _ = process.communicate(timeout=300)
        return process.returncode, output, self.calls.read_text()


@pytest.fixture
def clone(tmp_path):
    return Clone(tmp_path)


@pytest.fixture
def made(clone):
    """A clone with its .venv."""
    status, output, clone.first_calls = clone.bootstrap()
    assert status == 0 and "making .venv" in output
    return clone


def test_the_second_time_nothing_happens(made):
    assert "uv pip install --python .venv/bin/python --compile-bytecode -r requirements.txt" in made.first_calls
    assert "--no-deps --no-build-isolation -e ." in made.first_calls
    assert made.bootstrap() == NOTHING
    os.utime(made.root / "pyproject.toml")
    assert made.bootstrap() == NOTHING


def test_changed_pins_are_installed_into_the_same_environment_and_a_moved_one_is_made_again(made):
    for file in ("pyproject.toml", "requirements.txt"):
        made.change(file)
        status, _, calls = made.bootstrap()
        assert status == 0 and "-r requirements.txt" in calls and "venv\n" not in calls
        assert made.bootstrap() == NOTHING
    made.root = made.root.rename(made.root.with_name("another clone"))
    assert "venv\n" in made.bootstrap()[2]


def test_an_interrupted_installation_is_started_again(clone):
    process = clone.start(UV_WAITS="1")
    while "-r requirements.txt" not in clone.calls.read_text():
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    (clone.root / ".venv" / "half").touch()
    status, _, calls = clone.bootstrap()
    assert status == 0 and "venv\n" in calls and not (clone.root / ".venv" / "half").exists()


@pytest.mark.parametrize(
    "which, pins",
    [
        ((), "requirements.txt"),
        (("xla",), "requirements-xla.txt"),
        (("site",), "requirements-site.txt"),
    ],
)
def test_a_failed_installation_is_an_error_and_not_trusted(clone, which, pins):
    status, output, calls = clone.bootstrap(*which, UV_FAILS="1", PIP_FAILS="1")
    assert status == 1 and "could not be installed" in output and f"pip -m pip install -r {pins}" in calls
    status, _, calls = clone.bootstrap(*which)
    assert status == 0 and "venv\n" in calls


def test_without_uv_it_is_installed_and_without_that_or_on_request_pip_does_it(clone):
    status, _, calls = clone.bootstrap(HELPERS_NO_UV="1")
    assert status == 0 and "uv" not in calls
    assert "pip -m pip install -r requirements.txt" in calls and "--no-build-isolation -e ." in calls
    clone.add("uv", NOT_THERE)
    clone.change("requirements.txt")
    status, _, calls = clone.bootstrap()  # the stand-in for pip installs no uv
    assert status == 0
    assert calls.index("uv==") < calls.index("pip -m pip install -r requirements.txt")


def test_an_environment_of_the_reader_is_not_touched(clone):
    (clone.root / ".venv").mkdir()
    status, output, calls = clone.bootstrap()
    assert status == 1 and "was not made by this script" in output and "install" not in calls
    assert list((clone.root / ".venv").iterdir()) == []


REFUSED = {  # stand-ins on PATH, arguments and variables -> a part of the message
    "a python too old": ({"old": "#!/bin/sh\nexit 1\n"}, (), {"PYTHON": "old"}, "PYTHON is set to 'old'"),
    "a python without ensurepip": (
        {"uv": NOT_THERE, "debian": PYTHON.replace(RESPONDS, "*ensurepip*) exit 1 ;;\n    *) exec")},
        (),
        {"PYTHON": "debian"},
        "apt install python3-venv",
    ),
    "no torch_xla for a Mac": (
        {"uname": "#!/bin/sh\necho Darwin arm64\n"},
        ("xla",),
        {},
        "Linux on x86-64 only; this is Darwin arm64",
    ),
    "an unknown environment": ({}, ("tpu",), {}, "'tpu' is no environment"),
    "a release of no number": ({}, ("torch",), {}, "give the release of torch"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_made_is_refused_before_anything_is_made(clone, case):
    programs, arguments, variables, message = REFUSED[case]
    for name, text in programs.items():
        clone.add(name, text)
    status, output, calls = clone.bootstrap(*arguments, **variables)
    assert status == 1 and message in output and "install" not in calls
    assert not any(path.name.startswith(".venv") for path in clone.root.iterdir())


# The XLA environment


def test_the_xla_environment_is_made_beside_the_other(made):
    status, _, calls = made.bootstrap("xla")
    assert status == 0
    assert "uv pip install --python .venv-xla/bin/python --compile-bytecode -r requirements-xla.txt" in calls
    assert "-e ." not in calls and "requirements.txt" not in calls
    assert made.bootstrap("xla") == NOTHING == made.bootstrap()
    for file, changes in (("pyproject.toml", False), ("requirements.txt", False), ("requirements-xla.txt", True)):
        made.change(file)
        assert ("-r requirements-xla.txt" in made.bootstrap("xla")[2]) == changes, file


def test_it_follows_the_python_of_the_other(made):
    made.bootstrap("xla")
    older = PYTHON.replace(RESPONDS, '"-c "*version_info*:2*) echo "(3, 10)" ;;\n    *) exec')
    made.python.write_text(older)
    status, output, calls = made.bootstrap("xla")
    assert status == 0 and "making .venv-xla" in output and "venv\n" in calls


def test_a_python_too_new_for_torch_xla_is_refused(made):
    new = PYTHON.replace(RESPONDS, '*"(3, 13)"*) exit 1 ;;\n    "--version "*) echo Python 3.14.0 ;;\n    *) exec')
    made.python.write_text(new)
    status, output, _ = made.bootstrap("xla")
    assert status == 1 and "no torch_xla for Python 3.14.0" in output
    assert not (made.root / ".venv-xla").exists()


# Which torch


def torch_of(clone, *arguments, **environment):
    """(exit status, output, constraints, pip's calls) of a bootstrap."""
    status, output, calls = clone.bootstrap(*arguments, **environment)
    file = clone.python.parent.parent / "constraints.txt"
    return status, output, file.read_text().split() if file.exists() else None, calls


def test_a_python_with_torch_lends_it_and_only_the_rest_is_installed(clone):
    installed = importlib.metadata.version("torch")
    status, output, constraints, calls = torch_of(clone, PYTHON=str(clone.bin / "python3"))
    assert status == 0 and f"using torch {installed} of {sys.executable}" in output
    assert constraints[0] == f"torch=={installed}"
    assert "-c .venv/constraints.txt -e .[vision,test]" in calls and "uv pip" not in calls and "-r " not in calls
    site = Path(clone.python.parent.parent / "lender").read_text().strip()
    assert site == sys.executable
    assert clone.bootstrap() == NOTHING == clone.bootstrap(PYTHON=str(clone.bin / "python3"))


def test_the_active_environment_is_used_on_request(clone):
    active = clone.root / "active" / "bin"
    active.mkdir(parents=True)
    (active / "python").symlink_to(clone.bin / "python3")
    status, output, constraints, _ = torch_of(clone, HERE="1", VIRTUAL_ENV=str(active.parent))
    assert status == 0 and "which stays as it is" in output and constraints


def test_another_python_makes_the_environment_again(made):
    status, output, constraints, calls = torch_of(made, PYTHON=str(made.bin / "python3"))
    assert status == 0 and "venv\n" in calls and constraints


@pytest.mark.parametrize(
    "card, constraints, why",
    [
        ("NVIDIA H200, 580.65.06, 9.0", [], "runs the newest torch"),
        ("NVIDIA H100, 550.90.07, 9.0", ["torch==2.10.*"], "runs torch 2.10"),
        ("Tesla V100-SXM2-16GB, 580.65.06, 7.0", ["torch==2.10.*"], "runs torch 2.10"),
        ("Tesla P100-PCIE-16GB, 535.129.03, 6.0", ["torch==2.7.*"], "runs torch 2.7"),
        ("NVIDIA H100, 550.90.07, 9.0\nTesla P100-PCIE-16GB, 550.90.07, 6.0", ["torch==2.7.*"], "runs torch 2.7"),
    ],
)
def test_the_newest_torch_that_the_driver_and_the_card_can_run(clone, card, constraints, why):
    clone.add("nvidia-smi", f"#!/bin/sh\necho '{card}'\n")
    status, output, found, calls = torch_of(clone)
    assert status == 0 and found == constraints and why in output
    assert ("-c .venv/constraints.txt" in calls) == bool(constraints)


def test_a_driver_too_old_for_any_torch_is_an_error_that_says_what_to_do(clone):
    clone.add("nvidia-smi", "#!/bin/sh\ncase $1 in *compute_cap*) exit 2 ;; *) echo 'Tesla K80, 470.82.01' ;; esac\n")
    status, output, _, calls = torch_of(clone)
    assert status == 1 and "470.82.01" in output and "needs driver 525" in output and "HELPERS_DEVICE=cpu" in output
    assert "-r requirements.txt" not in calls
    assert torch_of(clone, HELPERS_DEVICE="cpu")[0] == 0


def test_an_environment_with_an_older_torch(clone):
    status, _, calls = clone.bootstrap("torch", "2.6")
    assert status == 0 and "lowest-direct" in calls
    assert (clone.root / ".venv-torch-2.6" / "constraints.txt").read_text() == "torch==2.6.*\n"
    status, output, _ = clone.bootstrap("torch", "2.5")
    assert status == 1 and "older than 2.6" in output


def test_wheels_in_a_folder_do_for_a_network(clone):
    clone.add("uv", '#!/bin/sh\necho "$UV_FIND_LINKS: uv $*" >>"$CALLS"\n')
    _, output, calls = clone.bootstrap(PIP_NO_INDEX="1", PIP_FIND_LINKS="wheels")
    assert "no download, from wheels; 6 GB of disk" in output and "a download of" not in output
    installs = [call for call in calls.splitlines() if "pip install" in call]
    assert len(installs) == 2 and all(call.startswith("wheels: ") and "--no-index" in call for call in installs)

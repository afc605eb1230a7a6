"""tools/bootstrap.sh with stand-ins for Python and uv, so that nothing is installed."""

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


class Clone:
    """A project folder with a space in its name, and the stand-ins."""

    def __init__(self, folder):
        self.root = folder / "a clone"
        (self.root / "tools").mkdir(parents=True)
        for name in ("pyproject.toml", "requirements.txt", "requirements-xla.txt", "tools/bootstrap.sh"):
            shutil.copy(ROOT / name, self.root / name)
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.calls = folder / "calls"
        self.add("python3", PYTHON)
        self.add("uv", "#!/bin/sh\nexit 127\n")  # what a version manager leaves on PATH; also hides the system's uv
        self.stamp = self.root / ".venv" / "bootstrap.stamp"

    def add(self, name, text):
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def start(self, *arguments, **environment):
        """Start the bootstrap in another folder, as `make -C` would, with nothing on PATH but the system's tools."""
        system = {"PATH": f"{self.bin}:/usr/bin:/bin", "CALLS": str(self.calls), "HOME": str(self.root)}
        self.calls.write_text("")
        return subprocess.Popen(
            ["sh", str(self.root / "tools" / "bootstrap.sh"), *arguments], cwd=self.bin, env=system | environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip

    def bootstrap(self, *arguments, **environment):
        """(exit status, what it said, what it called)"""
        process = self.start(*arguments, **environment)
        said, _ = process.communicate(timeout=60)
        return process.returncode, said, self.calls.read_text()


@pytest.fixture
def clone(tmp_path):
    return Clone(tmp_path)


def test_the_second_time_nothing_happens(clone):
    clone.add("uv", UV)
    status, said, calls = clone.bootstrap()
    assert status == 0 and "making .venv" in said and "done" in said
    assert "uv pip install --python .venv/bin/python --compile-bytecode -r requirements.txt" in calls
    assert "--no-deps --no-build-isolation -e ." in calls
    assert clone.bootstrap() == (0, "", "")
    os.utime(clone.root / "pyproject.toml")
    assert clone.bootstrap() == (0, "", "")


@pytest.mark.parametrize("file", ["pyproject.toml", "requirements.txt"])
def test_changed_pins_are_installed_into_the_same_environment(clone, file):
    clone.add("uv", UV)
    clone.bootstrap()
    with open(clone.root / file, "a") as text:
        text.write("# changed\n")
    status, _, calls = clone.bootstrap()
    assert status == 0 and "-r requirements.txt" in calls and "venv\n" not in calls
    assert clone.bootstrap() == (0, "", "")


def test_an_environment_that_was_moved_is_made_again(clone):
    clone.add("uv", UV)
    clone.bootstrap()
    clone.root = clone.root.rename(clone.root.with_name("another clone"))
    assert "venv\n" in clone.bootstrap()[2]


def test_an_interrupted_installation_is_started_again(clone):
    clone.add("uv", UV)
    process = clone.start(UV_WAITS="1")
    while "-r requirements.txt" not in clone.calls.read_text():
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    (clone.root / ".venv" / "half").touch()
    status, _, calls = clone.bootstrap()
    assert status == 0 and "venv\n" in calls and not (clone.root / ".venv" / "half").exists()


def test_a_failed_installation_is_said_and_not_trusted(clone):
    clone.add("uv", UV)
    status, said, calls = clone.bootstrap(UV_FAILS="1", PIP_FAILS="1")
    assert status == 1 and "could not be installed" in said and "pip -m pip install -r requirements.txt" in calls
    status, _, calls = clone.bootstrap()
    assert status == 0 and "venv\n" in calls


def test_without_uv_it_is_installed_and_without_that_pip_does_it(clone):
    status, said, calls = clone.bootstrap()  # the stand-in for pip installs no uv
    assert status == 0 and "trying pip" in said
    assert calls.index("uv==") < calls.index("pip -m pip install -r requirements.txt")


def test_uv_is_left_alone_on_request(clone):
    clone.add("uv", UV)
    status, _, calls = clone.bootstrap(HELPERS_NO_UV="1")
    assert status == 0 and "uv" not in calls
    assert "pip -m pip install -r requirements.txt" in calls and "--no-build-isolation -e ." in calls


def test_an_environment_of_the_reader_is_not_touched(clone):
    (clone.root / ".venv").mkdir()
    status, said, calls = clone.bootstrap()
    assert status == 1 and "was not made by this script" in said and calls == ""
    assert list((clone.root / ".venv").iterdir()) == []


def test_python_3_10_is_asked_for(clone):
    clone.add("old", "#!/bin/sh\nexit 1\n")
    status, said, _ = clone.bootstrap(PYTHON="old")
    assert status == 1 and "PYTHON is set to 'old'" in said and not clone.stamp.exists()


def test_a_python_without_ensurepip_is_said(clone):
    clone.add("debian", PYTHON.replace("*) exec", "*ensurepip*) exit 1 ;;\n    *) exec"))
    status, said, _ = clone.bootstrap(PYTHON="debian")
    assert status == 1 and "apt install python3-venv" in said and not (clone.root / ".venv").exists()


# The XLA environment


@pytest.fixture
def linux(clone):
    """The clone on a machine that torch_xla has packages for, whatever the tests run on."""
    clone.add("uname", "#!/bin/sh\necho Linux x86_64\n")
    clone.add("uv", UV)
    return clone


def test_the_xla_environment_is_made_beside_the_other(linux):
    linux.bootstrap()
    status, said, calls = linux.bootstrap("xla")
    assert status == 0 and "making .venv-xla" in said and "7 GB" in said and "done, .venv-xla is ready" in said
    assert "uv pip install --python .venv-xla/bin/python --compile-bytecode -r requirements-xla.txt" in calls
    assert "-e ." not in calls and "requirements.txt" not in calls
    assert linux.bootstrap("xla") == (0, "", "") == linux.bootstrap()


def test_only_its_own_pins_change_it(linux):
    linux.bootstrap("xla")
    for file, changes in (("pyproject.toml", False), ("requirements.txt", False), ("requirements-xla.txt", True)):
        with open(linux.root / file, "a") as text:
            text.write("# changed\n")
        assert ("-r requirements-xla.txt" in linux.bootstrap("xla")[2]) == changes, file


def test_an_interrupted_xla_installation_is_started_again(linux):
    assert linux.bootstrap("xla", UV_FAILS="1", PIP_FAILS="1")[0] == 1
    status, said, calls = linux.bootstrap("xla")
    assert status == 0 and "venv\n" in calls and "done" in said


def older(python):
    """The stand-in for Python, of version 3.10 with the answer of a real one."""
    return python.replace("*) exec", '"-c "*version_info*:2*) echo "(3, 10)" ;;\n    *) exec')


def test_it_follows_the_python_of_the_other(linux):
    linux.bootstrap()
    linux.bootstrap("xla")
    (linux.root / ".venv" / "bin" / "python").write_text(older(PYTHON))
    status, said, calls = linux.bootstrap("xla")
    assert status == 0 and "making .venv-xla" in said and "venv\n" in calls


def test_a_python_too_new_for_torch_xla_is_said(linux):
    linux.bootstrap()
    new = PYTHON.replace("*) exec", '*"(3, 13)"*) exit 1 ;;\n    "--version "*) echo Python 3.14.0 ;;\n    *) exec')
    (linux.root / ".venv" / "bin" / "python").write_text(new)
    status, said, _ = linux.bootstrap("xla")
    assert status == 1 and "no torch_xla for Python 3.14.0" in said and "3.10 to 3.13" in said
    assert not (linux.root / ".venv-xla").exists()


def test_another_machine_is_told_that_there_is_no_torch_xla(clone):
    clone.add("uname", "#!/bin/sh\necho Darwin arm64\n")
    status, said, calls = clone.bootstrap("xla")
    assert status == 1 and "Linux on x86-64 only; this is Darwin arm64" in said and calls == ""


def test_an_unknown_environment_is_refused(clone):
    status, said, calls = clone.bootstrap("tpu")
    assert status == 1 and "'tpu' is no environment" in said and calls == ""

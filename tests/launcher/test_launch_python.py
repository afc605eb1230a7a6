"""`launch(…, python=…)`: ranks in the environment of another interpreter."""

import os
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from kernel import descendants, kernel, running, wait_until

import helpers
from helpers import RankError, launch
from helpers.launcher import client, interpreter

THEIRS = "only_in_the_other.py"


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Another environment that has this one's packages, by a .pth file, and a module of its own."""
    folder = tmp_path_factory.mktemp("other") / "an environment"
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    (packages / THEIRS).write_text("VALUE = 'theirs'\n")
    yield folder / "bin" / "python"
    for key in [key for key in client._servers if key[0] is not None]:
        client._servers.pop(key).close()


@pytest.fixture
def no_rank_may_start(monkeypatch):
    monkeypatch.setattr(client, "server", lambda *_: pytest.fail("a rank was about to start"))


def script(folder, text):
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_ranks_run_in_the_other_environment(other):
    offset = 10

    def there(greeting):
        import only_in_the_other

        with helpers.distributed("cpu") as world:
            total = helpers_sum(world.rank)
            return greeting, sys.prefix, only_in_the_other.VALUE, total + offset

    def helpers_sum(rank):
        import torch

        total = torch.tensor([float(rank + 1)])
        torch.distributed.all_reduce(total)
        return total.item()

    prefix = str(other.parent.parent)
    assert launch(there, 2, "hello", python=other) == [("hello", prefix, "theirs", 13.0)] * 2
    assert launch(lambda: sys.prefix, 1) == [sys.prefix]  # and the usual ranks where they always did


def test_a_failing_rank_is_named(other):
    def fails():
        with helpers.distributed("cpu") as world:
            if world.rank == 1:
                raise ZeroDivisionError("planted")
            import torch

            torch.distributed.barrier()

    with pytest.raises(RankError, match=r"rank 1 failed(.|\n)*ZeroDivisionError: planted") as caught:
        launch(fails, 2, python=other)
    assert caught.value.rank == 1 and isinstance(caught.value.exception, ZeroDivisionError)


def test_one_server_for_each_interpreter(other):
    launch(int, 1), launch(int, 1, python=other)
    servers = dict(client._servers)
    launch(int, 1), launch(int, 1, python=other), launch(int, 1, python=Path(sys.executable))
    assert client._servers == servers and {None, str(other)} <= {key[0] for key in servers}


@pytest.mark.long
def test_ranks_die_with_the_kernel_and_stop_with_the_button(other, tmp_path):
    with kernel() as k:
        k.value(
            "import helpers, time, signal, os\n"
            "def stuck():\n"
            f"    open({str(tmp_path)!r} + '/' + os.environ['RANK'], 'w').close(), time.sleep(600)\n"
        )
        k.start_cell(f"helpers.launch(stuck, 2, python={str(other)!r})")
        servers = 2  # the kernel's own, which an import in a notebook starts, and the other's
        assert wait_until(lambda: len(list(tmp_path.iterdir())) == 2, 300) is not None
        k.interrupt()
        out = k.finish_cell()
        assert out.error == "KeyboardInterrupt" and "time.sleep(600)" in out.displayed
        k.start_cell(f"helpers.launch(stuck, 2, python={str(other)!r})")
        assert wait_until(lambda: len(descendants(k.pid)) == servers + 2, 300) is not None
        family = descendants(k.pid)
        os.kill(k.pid, 9)
        assert wait_until(lambda: not any(map(running, family)), 300) is not None


# The import path


def test_our_packages_stay_here_and_our_folders_go_along(other, monkeypatch, tmp_path):
    python = interpreter.checked(other)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path, str(tmp_path / "after")])
    path = interpreter.import_path(python)
    theirs = str(other.parent.parent)
    assert path[0] == str(tmp_path) and path[-1] == str(tmp_path / "after")
    assert str(Path(helpers.__file__).resolve().parents[1]) in path
    inside = [entry for entry in path if entry.startswith(theirs)]
    assert len(inside) == 1 and len(path) == len(set(path))
    # Ours comes once, where the other's .pth file names it, behind its own.
    assert path.index(sysconfig.get_path("purelib")) > path.index(inside[0])


# What is refused


@pytest.mark.usefixtures("no_rank_may_start")
class TestRefused:
    @pytest.mark.parametrize("wrong", [3, True, ["python"]])
    def test_not_a_path(self, wrong):
        with pytest.raises(TypeError, match="give the path of an interpreter"):
            launch(int, 2, python=wrong)

    def test_not_there_or_no_interpreter(self, tmp_path):
        with pytest.raises(ValueError, match="cannot be run"):
            launch(int, 2, python=tmp_path / "nowhere")
        with pytest.raises(ValueError, match="no Python interpreter that works: I am no Python"):
            launch(int, 2, python=script(tmp_path, "echo I am no Python >&2; exit 3"))

    def test_another_version(self, tmp_path):
        fake = script(tmp_path, """echo '["3.9", [], []]'""")
        ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
        with pytest.raises(ValueError, match=rf"is Python 3\.9, this process runs Python {ours}.*bytecode"):
            launch(int, 2, python=fake)

    def test_without_torch_and_once_it_is_there(self, tmp_path, monkeypatch):
        venv.create(tmp_path / "empty", with_pip=False, symlinks=True)
        python = tmp_path / "empty" / "bin" / "python"
        with pytest.raises(ValueError, match="lacks torch and cloudpickle.*pip install torch cloudpickle"):
            launch(int, 2, python=python)
        (packages,) = (tmp_path / "empty").glob("lib/python*/site-packages")
        (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
        assert interpreter.checked(python) == str(python)  # asked anew, not remembered

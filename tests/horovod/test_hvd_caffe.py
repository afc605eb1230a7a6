"""platforms.horovod.caffe: on a stand-in for Caffe's solver, and, where `make caffe` was run, on Caffe."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import caffe_ranks
import pytest

from helpers import launch
from helpers.paths import project_root

PYTHON = Path(os.environ.get("HELPERS_CAFFE_PYTHON") or project_root() / ".venv-caffe" / "bin" / "python")


def test_without_caffe_the_order_of_its_solver():
    ranks = launch(caffe_ranks.without_caffe, 2, threads=1, timeout=300)
    assert ranks[0]["start"] == ranks[1]["start"]  # rank 0's, though the seeds differ
    for rank, found in enumerate(ranks):
        # Two passes of 1 on rank 0 and of 2 on rank 1: a mean of 3, also of what two layers share.
        assert found["log"] == [[3.0, 3.0]] * 2 + ["snapshot"] * (rank == 0)
        assert "has not been initialized" in found["early"] and "distributed already" in found["twice"]
        assert "differ in parameter one.1: " in found["smaller"] and "none on rank 1" in found["smaller"]
        assert "differ in iteration" in found["late"] and "call restore() on all of them" in found["late"]


def build_script(folder, **stand_ins):
    """What tools/caffe.sh says in a clone where these commands answer other things."""
    for name, answer in stand_ins.items():
        file = folder / "bin" / name.replace("_", "-")
        file.write_text(f"#!/bin/sh\n{answer}\n")
        file.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}/bin:/usr/bin:/bin"}
    script = folder / "a clone" / "tools" / "caffe.sh"
    run = subprocess.run(["sh", script], env=environment, cwd=folder, capture_output=True, text=True, timeout=300)
    return run.returncode, run.stdout + run.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="Caffe is built on Debian")
def test_the_build_does_nothing_twice_and_nothing_without_being_asked(tmp_path):
    clone = tmp_path / "a clone"
    for name in ("bin", "a clone/tools", "a clone/.venv/bin"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(project_root() / "tools" / "caffe.sh", clone / "tools")
    (clone / ".venv" / "bin" / "python").symlink_to(sys.executable)
    packages_missing = dict(apt_get="exit 9", dpkg_query="exit 0", id="echo 1000")
    status, said = build_script(tmp_path, **packages_missing)
    assert status == 1 and "'sudo apt-get install --no-install-recommends build-essential cmake " in said
    assert not (clone / ".venv-caffe").exists()
    (clone / ".venv-caffe" / "bin").mkdir(parents=True)
    status, said = build_script(tmp_path)
    assert status == 1 and "was not made by this script" in said
    (clone / ".venv-caffe" / "bin" / "python").symlink_to(sys.executable)
    text = f"{clone}\n{sys.version}\n{(clone / 'tools' / 'caffe.sh').read_text()}"
    (clone / ".venv-caffe" / "caffe.stamp").write_text(text)
    assert build_script(tmp_path) == (0, "")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("caffe"))
    return folder, launch(caffe_ranks.with_caffe, 2, folder, python=PYTHON, threads=1, timeout=200)


def real(test):
    """Marks a test that needs the Caffe of `make caffe`."""
    return pytest.mark.caffe(pytest.mark.skipif(not PYTHON.exists(), reason="there is no Caffe: make caffe")(test))


@real
def test_two_ranks_are_one_process_with_the_global_batch(ranks):
    for found in ranks[1]:
        assert set(found["distance"]) == {*caffe_ranks.SOLVERS, "Data layer"}
        assert max(found["distance"].values()) <= 1.2e-7, found["distance"]
        assert found["by hand"] <= 1.2e-7 and 0 < found["fp16"] < 1e-3
        assert found["same on all ranks"]


@real
def test_the_first_forward_agrees(ranks):
    (before, after, shared), (other, same, also) = (found["first"] for found in ranks[1])
    assert before == after == same != other and shared and also


@real
def test_rank_0_alone_writes_snapshots_and_all_go_on_from_them(ranks):
    folder, found = ranks
    written = sorted(path.name for path in Path(folder).glob("*.solverstate"))
    assert written == [f"rank0_iter_{i}.solverstate" for i in (2, 4, 5)]
    for rank in found:
        assert rank["ends"] == 5 and rank["resumed"] == 0
        assert "finds no solver state" in rank["missing"]
        assert "differ in iteration: " in rank["late"] and "call restore() on all of them" in rank["late"]


@real
def test_misuse_is_explained(ranks):
    for found in ranks[1]:
        assert "has not been initialized" in found["early"] and "distributed already" in found["twice"]

"""helpers.hvd.mxnet, where its environment is here: collectives, trainers, optimizers, stores, whole scripts.

The cases themselves are in tests/hvd/mxnet_ranks.py, which all run in one pair of ranks under Python 3.8.
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_bootstrap import PYTHON, UV, Clone
from test_project import PYPROJECT, tomllib

ROOT = Path(__file__).resolve().parents[2]
RANKS = ROOT / "tests" / "hvd" / "mxnet_ranks.py"
MXNET = Path(os.environ.get("HELPERS_MXNET_PYTHON") or ROOT / ".venv-mxnet" / "bin" / "python")
FREE_PORT = ("--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0")
CASES = [
    node.name for node in ast.parse(RANKS.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("case_")
]  # fmt: skip


def real(test):
    """Marks a test that needs the environment of `make mxnet`."""
    reason = f"there is no MXNet environment ({MXNET}): make mxnet"
    return pytest.mark.mxnet(pytest.mark.skipif(not MXNET.exists(), reason=reason)(test))


def run(*command, ok=True):
    """Run with MXNet's Python; (what it printed, what it said on stderr)."""
    environment = dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        environment.pop(name, None)
    done = subprocess.run([MXNET, *map(str, command)], env=environment, capture_output=True, text=True, timeout=150)
    assert (done.returncode == 0) == ok, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout, done.stderr


def torchrun(nranks, *command):
    return run("-m", "torch.distributed.run", f"--nproc_per_node={nranks}", *FREE_PORT, *command)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What went wrong in each case, on each of two ranks: [{case: traceback or None}]."""
    folder = tmp_path_factory.mktemp("ranks")
    torchrun(2, RANKS, folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@real
@pytest.mark.parametrize("case", CASES)
def test_two_ranks(outcomes, case):
    for rank, outcome in enumerate(outcomes):
        assert outcome["size"] == 2
        assert outcome[case] is None, f"rank {rank}:\n{outcome[case]}"


@real
def test_without_a_launcher_it_is_a_world_of_one(tmp_path):
    run(RANKS, tmp_path, "case_module_with_the_store", "case_distributed_trainer", "case_gluon_trainer_with_the_store")
    outcome = json.loads((tmp_path / "0.json").read_text())
    assert outcome.pop("size") == 1 and len(outcome) == 3
    assert set(outcome.values()) == {None}, outcome


@real
def test_the_public_shape_of_script_trains_unchanged():
    script = ROOT / "tests" / "scripts" / "hvd_mxnet_mnist.py"
    _, said = run("-m", "helpers.hvd", "-np", "2", script, "--fp16-allreduce", "--gradient-predivide-factor", "2")
    last = [line for line in said.splitlines() if "Validation" in line]
    assert len(last) == 3 and "Epoch[2]" in last[-1], said


@real
def test_the_lesson_prints_what_was_recorded():
    printed, _ = torchrun(2, ROOT / "helpers" / "hvd" / "lessons" / "mxnet_gluon.py")
    found, recorded = json.loads(printed), json.loads((ROOT / "recorded" / "hvd" / "mxnet.json").read_text())["found"]
    assert found["ranks"] == recorded["ranks"] == 2
    for way in ("horovod", "kvstore"):
        assert found[way]["ranks_equal"] and found[way]["difference_to_one_process"] <= 1.2e-7
        assert found[way]["losses"] == pytest.approx(recorded[way]["losses"], abs=2e-3)


def test_the_recorded_run_keeps_the_promise():
    recorded = json.loads((ROOT / "recorded" / "hvd" / "mxnet.json").read_text())
    assert set(recorded) == {"date", "versions", "command", "found"}
    pins = (ROOT / "requirements-mxnet.txt").read_text()
    for name in ("mxnet", "torch", "numpy"):
        assert f"\n{name}=={recorded['versions'][name]}\n" in pins
    for way in ("horovod", "kvstore"):
        found = recorded["found"][way]
        assert found["ranks_equal"] and found["difference_to_one_process"] <= 1.2e-7
        assert found["losses"] == sorted(found["losses"], reverse=True)


def test_what_mxnet_s_ranks_import_is_python_3_8():
    files = [ROOT / "helpers" / f"{name}.py" for name in ("__init__", "device", "launch", "live", "process_group")]
    files += [file for file in (ROOT / "helpers" / "hvd").rglob("*.py") if "lessons" not in file.parts]
    for file in [*files, *(ROOT / "helpers" / "launcher").glob("*.py"), RANKS]:
        ast.parse(file.read_text(encoding="utf-8"), str(file), feature_version=(3, 8))


# The environment


def test_what_is_installed_is_what_the_project_pins():
    direct = tomllib.loads((ROOT / PYPROJECT).read_text())["dependency-groups"]["mxnet"]
    lines = [line for line in (ROOT / "requirements-mxnet.txt").read_text().splitlines() if line.strip()[:1] != "#"]
    assert set(direct) <= set(lines) and all(line.count("==") == 1 and "/" not in line for line in lines)


@pytest.fixture
def linux(tmp_path):
    """A clone on a machine that MXNet has packages for, with a stand-in for Python 3.8."""
    clone = Clone(tmp_path)
    (clone.root / "requirements-mxnet.txt").write_bytes((ROOT / "requirements-mxnet.txt").read_bytes())
    clone.add("uname", "#!/bin/sh\necho Linux x86_64\n")
    clone.add("python3.8", PYTHON.replace('case "$1 $2" in', 'case "$1 $2" in\n    "-c import sys; sys.exit"*) ;;'))
    return clone


def test_the_environment_is_made_beside_the_others_and_once(linux):
    linux.add("uv", UV)
    status, said, calls = linux.bootstrap("mxnet")
    assert status == 0 and "making .venv-mxnet" in said and "2 GB" in said and "done, .venv-mxnet is ready" in said
    assert "uv pip install --python .venv-mxnet/bin/python --compile-bytecode -r requirements-mxnet.txt" in calls
    assert "-e ." not in calls and not (linux.root / ".venv").exists()
    assert linux.bootstrap("mxnet") == (0, "", "")
    with open(linux.root / "requirements-mxnet.txt", "a") as text:
        text.write("# changed\n")
    assert "-r requirements-mxnet.txt" in linux.bootstrap("mxnet")[2]


def test_without_python_3_8_it_is_said_how_to_get_one(linux):
    (linux.bin / "python3.8").unlink()
    status, said, calls = linux.bootstrap("mxnet", HELPERS_NO_UV="1")
    assert status == 1 and "found no Python 3.8" in said and "uv python install 3.8" in said and calls == ""
    assert not (linux.root / ".venv-mxnet").exists()
    status, said, _ = linux.bootstrap("mxnet", PYTHON=sys.executable)
    assert status == 1 and "is not Python 3.8" in said


def test_python_3_8_is_fetched_by_uv(linux):
    found = linux.bin / "python3.8"
    found.rename(linux.bin / "fetched")
    linux.add("uv", UV.replace('case "$*" in', f'case "$*" in "python find 3.8") echo "{linux.bin}/fetched" ;;'))
    status, _, calls = linux.bootstrap("mxnet")
    assert status == 0 and calls.index("uv python install 3.8") < calls.index("venv\n")


def test_another_machine_is_told_that_there_is_no_mxnet(linux):
    linux.add("uname", "#!/bin/sh\necho Darwin arm64\n")
    status, said, calls = linux.bootstrap("mxnet")
    assert status == 1 and "Linux on x86-64 only; this is Darwin arm64" in said and calls == ""

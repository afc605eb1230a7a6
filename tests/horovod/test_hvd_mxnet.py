"""platforms.horovod.mxnet, where its environment is here: collectives, trainers, optimizers, stores, whole scripts.

The cases themselves are in tests/horovod/mxnet_ranks.py, which all run in one pair of ranks under Python 3.8.
"""

import ast
import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RANKS = ROOT / "tests" / "horovod" / "mxnet_ranks.py"
MXNET = Path(os.environ.get("HELPERS_MXNET_PYTHON") or ROOT / ".venv-mxnet" / "bin" / "python")
FREE_PORT = ("--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0")
CASES = [
    node.name
    for node in ast.parse(RANKS.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("case_")
]


def real(test):
    """Marks a test that needs the environment of `make mxnet`."""
    reason = f"there is no MXNet environment ({MXNET}): make mxnet"
    return pytest.mark.mxnet(pytest.mark.skipif(not MXNET.exists(), reason=reason)(test))


def run(*command, ok=True):
    """Run with MXNet's Python; (what it printed, what it said on stderr)."""
    environment = dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    environment["HOROVOD_START_TIMEOUT"] = "120"  # importing MXNet in two processes takes long on a busy machine
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
def test_batch_norm_of_two_hosts(tmp_path):
    torchrun(4, RANKS, tmp_path, "case_batch_norm_over_the_ranks_of_a_host_or_all")
    for rank in range(4):
        assert set(json.loads((tmp_path / f"{rank}.json").read_text()).values()) == {4, None}


@real
def test_the_public_shape_of_script_trains_unchanged():
    script = ROOT / "tests" / "scripts" / "hvd_mxnet_mnist.py"
    _, said = run("-m", "platforms.horovod", "-np", "2", script, "--fp16-allreduce", "--gradient-predivide-factor", "2")
    last = [line for line in said.splitlines() if "Validation" in line]
    assert len(last) == 3 and "Epoch[2]" in last[-1], said

"""platforms.horovod.keras and platforms.horovod.tensorflow: two ranks equal one process on the global batch."""

import os
import re
import subprocess
from pathlib import Path

import keras_ranks
import numpy as np
import pytest
from packaging.requirements import Requirement

from helpers import launch

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "HELPERS_DEVICE": "cpu"}
PYTHON = Path(os.environ.get("HELPERS_KERAS_PYTHON") or ROOT / ".venv-keras" / "bin" / "python").expanduser()
CASES = "fit_float64 tape_loops callbacks saved_and_loaded collectives overflow unordered errors"


def extra(test):
    """Marks a test that needs the environment of `make keras`."""
    there = os.access(PYTHON, os.X_OK)
    return pytest.mark.keras(pytest.mark.skipif(not there, reason="there is no TensorFlow here: make keras")(test))


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """What each case gave on rank 0 and on rank 1; importing TensorFlow takes longer than all of them."""
    folder = tmp_path_factory.mktemp("keras")
    ranks = launch(
        keras_ranks.in_one_start, 2, CASES.split(), str(folder), python=PYTHON, threads=1, env=QUIET, timeout=900
    )

    def of(case):
        failed = [
            f"rank {rank}:\n{results[case]}" for rank, results in enumerate(ranks) if isinstance(results[case], str)
        ]
        assert not failed, "\n".join(failed)
        return [results[case] for results in ranks]

    return of


@extra
def test_fit_equals_one_process_with_every_option(given):
    for rank in given("fit_float64"):
        assert {case: worst for case, worst in rank.items() if max(worst) > 1e-12} == {}


@extra
def test_tape_equals_one_process(given):
    for rank in given("tape_loops"):
        assert max(rank.values()) <= 1e-12 and len(rank) == 4


@extra
def test_callbacks(given):
    first, second = given("callbacks")
    steps = keras_ranks.BATCHES
    assert first[1] == second[1] and first[0] != second[0]
    assert first[1] == pytest.approx([(a + b) / 2 for a, b in zip(first[0], second[0], strict=True)], abs=1e-12)
    for _, _, rates, last in (first, second):
        rising = [0.04 + 0.04 * (step + 1) / (2 * steps) for step in range(2 * steps)]
        assert rates == pytest.approx(rising + [0.02] * steps + [0.01] * steps, rel=1e-6)
        assert last == pytest.approx(0.01)


@extra
def test_a_model_is_saved_and_goes_on_with_and_without_us(given):
    for loaded, plain, kinds, iterations in given("saved_and_loaded"):
        assert loaded == 0 and plain <= 1e-12
        assert kinds == [True, False] and iterations == 3 * keras_ranks.BATCHES


@extra
def test_collectives_and_their_gradients(given):
    same = [np.arange(6.0).reshape(3, 2) + 10 * rank for rank in range(2)]
    rows = [np.arange(4.0 * (rank + 1)).reshape(-1, 2) for rank in range(2)]
    total, ones, weights = sum(same), np.ones((3, 2)), np.array([[1, 1], [1, 1], [2, 2]])
    for rank, seen in enumerate(given("collectives")):
        mine = [slice(0, 2), slice(2, 3)][rank]
        expected = {
            "average": (total / 2, 1.5 * ones),
            "fp16": (total / 2, 1.5 * ones),
            "sum": (6 * total, 18 * ones),
            "max": (same[1] + same[rank], (rank + 1) * ones),
            "grouped": (3 * total, 9 * ones),
            "broadcast": (same[1], 1.5 * rank * ones),
            "gather": (np.concatenate(rows), np.full_like(rows[rank], 1.5)),
            # Rank 0 keeps a row and sends one; rank 1 sends three and keeps one.
            "alltoall": [
                (np.concatenate([rows[0][:1], rows[1][:3]]), [[1, 1], [2, 2]]),
                (np.concatenate([rows[0][1:], rows[1][3:]]), [[1, 1]] * 3 + [[2, 2]]),
            ][rank],
            "scatter": (total[mine], 2 * weights),
            "scatter, average": (total[mine] / 2, weights),
        }
        for name, pair in expected.items():
            for found, wanted in zip(seen[name], pair, strict=True):
                np.testing.assert_array_equal(found, wanted, f"{name}, rank {rank}")
        assert seen["received"] == [[1, 3], [1, 1]][rank]
        assert seen["join"] == [(4.0, 1), (2.0, 1)][rank]
        assert seen["objects"] == ([{"rank": 0}, {"rank": 1}], {"rank": 1})


@extra
def test_ranks_agree_on_an_overflow(given):
    assert given("overflow") == [(1.0, 0.5, 1.0 - 0.75 * 2)] * 2


@extra
def test_unordered_operations_are_named_or_refused(given):
    for wrong, refused in given("unordered"):
        assert wrong == [] and "tf.data" in refused and "tf.function" in refused


@extra
def test_errors_say_what_happened(given):
    words = {
        "shapes": "FailedPreconditionError.*mismatch",
        "shapes in a function": "CollectiveError.*mismatch again",
        "slices": "ValueError.*sparse_as_dense=True",
        "xla": "NotImplementedError.*jit_compile=False",
        "uninitialized": r"FailedPreconditionError.*hvd.init\(\)",
        "no set": "no process set 7",
        "twice": "distributed already",
        "op": "not supported with op != Average",
        "min": "NotImplementedError: Only Sum and Average",
    }
    for rank in given("errors"):
        assert rank.pop("after all") == 1.5 and set(rank) == set(words)
        assert [name for name, text in rank.items() if not re.search(words[name], text, re.DOTALL)] == [], rank


@extra
@pytest.mark.parametrize("script, output", [("hvd_keras_mnist.py", "Epoch 2/2"), ("hvd_tf2_mnist.py", "Step #90")])
def test_scripts_for_horovod_run_as_they_are(script, output, tmp_path):
    path = ROOT / "tests" / "scripts" / script
    run = subprocess.run(
        [PYTHON, "-m", "platforms.horovod", "-np", "2", path, "--checkpoints", tmp_path],
        cwd=ROOT,
        env=os.environ | QUIET,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"0] {output}" in run.stdout and f"1] {output}" not in run.stdout  # lines are labelled with their rank
    assert any(tmp_path.iterdir())


@pytest.mark.parametrize("group", ["keras", "mxnet"])
def test_the_pins_are_of_what_pyproject_asks_for(group):
    def here(lines):
        requirements = [Requirement(line) for line in lines if line[:1].isalnum()]
        return [one for one in requirements if one.marker is None or one.marker.evaluate()]

    wanted = here(tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"][group])
    lines = (ROOT / f"requirements-{group}.txt").read_text().splitlines()
    pinned = {one.name: str(one.specifier).replace("==", "") for one in here(lines)}
    assert wanted and all(one.specifier.contains(pinned[one.name]) for one in wanted)

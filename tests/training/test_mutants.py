"""Ten mistakes, planted one at a time in a copy of the kit: each makes the test fail that is there to find it.

CONTRIBUTING.md has them as a table.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.paths import data_root

ROOT = Path(__file__).resolve().parents[2]
SUM = (
    "model = DistributedDataParallel(model, device_ids=index)\n"
    "        every = torch.distributed.all_reduce\n"
    "        model.register_comm_hook(None, lambda _, bucket: every(bucket.buffer(), async_op=True).get_future().then("
    "lambda done: done.value()[0]))\n"
    "        return model"
)
MEAN_OF_BATCHES = '"loss": loss / (world.size * -(-len(test_set) // (BATCH * world.size)))'
EQUAL, TRAIN, PRECISION = (f"tests/training/test_{name}.py" for name in ("equivalence", "train", "precision"))
MUTANTS = {  # name: (test that finds it, file in helpers, (old, new), …)
    "gradients added up, not averaged": (
        f"{EQUAL}::test_ddp_follows_the_losses_of_one_process",
        "training/strategies.py",
        ("return DistributedDataParallel(model, device_ids=index, find_unused_parameters=bool(self.unused))", SUM),
    ),
    "buffers not broadcast before the test": (
        f"{EQUAL}::test_all_ranks_test_the_model_of_rank_0",
        "training/evaluation.py",
        ("dist.broadcast(buffer, 0)", "pass"),
    ),
    "sampler without the seed": (
        "tests/data/test_data.py::test_ranks_together_see_what_one_device_sees",
        "data/batches.py",
        ("default_rng((self.seed, self.epoch, 0))", "default_rng()"),
    ),
    "set_epoch left out": (
        f"{EQUAL}::test_the_loop_is_that_of_plain_pytorch",
        "training/loop.py",
        ("self.loader.set_epoch(epoch)", "pass"),
    ),
    "clipped before unscale_": (
        f"{PRECISION}::test_clipping_sees_gradients_without_the_scale",
        "training/precision.py",
        ("self.scaler.unscale_(optimizer)", "pass"),
    ),
    "gradients not zeroed": (
        f"{EQUAL}::test_the_loop_is_that_of_plain_pytorch",
        "training/loop.py",
        ("self.precision.zero_grad()", "pass"),
    ),
    "micro-batches' losses not divided": (
        f"{EQUAL}::test_accumulated_micro_batches_equal_the_whole_batch",
        "training/loop.py",
        ("micro_batch[1]) / parts", "micro_batch[1])"),
    ),
    "a small last batch counts like a whole one": (
        f"{EQUAL}::test_all_ranks_test_the_model_of_rank_0",
        "training/evaluation.py",
        (".item() * len(labels)", ".item()"),
        ('"loss": loss / samples', MEAN_OF_BATCHES),
    ),
    "the last rank saves": (
        f"{PRECISION}::test_resume_with_amp_follows_the_run_that_was_never_stopped",
        "training/strategies.py",
        ("if run.world.is_main:", "if run.world.rank == run.world.size - 1:"),
    ),
    "resumed without the state of the random numbers": (
        f"{TRAIN}::test_resume_follows_the_run_that_was_never_stopped",
        "training/checkpoint.py",
        ('set_random_states(state["rng"][run.world.rank], run.world.device)', "pass"),
    ),
}


def outcome(root, *tests):
    """Exit status and output of pytest on the copy in `root`."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not long", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(root), "HELPERS_DATA": str(data_root())}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    root = tmp_path_factory.mktemp("copy")
    for name in ("helpers", "tests", "tools"):
        shutil.copytree(ROOT / name, root / name)
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, root / name)
    status, said = outcome(root, *sorted({test for test, *_ in MUTANTS.values()}))
    assert status == 0, said
    return root


@pytest.mark.long
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_mistake_is_found(copy, name):
    test, file, *edits = MUTANTS[name]
    path = copy / "helpers" / file
    whole = source = path.read_text(encoding="utf-8")
    for old, new in edits:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    path.write_text(source, encoding="utf-8")
    try:
        status, said = outcome(copy, test)
    finally:
        path.write_text(whole, encoding="utf-8")
    assert status == 1 and "1 failed" in said, said

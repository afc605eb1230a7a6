"""One contender of a benchmark whose runs take turns: the kit's own run, `python -m benchmarks.loop_case '{…}'`.

The JSON holds "settings" of a RunConfig, and "ranks" where as many unconnected runs are to go on at the same time.
"""

import json
import os
import sys
import tempfile

import torch.nn.functional as F

import helpers
from benchmarks import turns
from helpers import RunConfig, launch
from helpers.training.loop import train


def command(ranks=None, **settings):
    """What starts it, for turns.measured. `settings` need steps=turns.steps_needed(…)."""
    return [sys.executable, "-m", "benchmarks.loop_case", json.dumps({"settings": settings, "ranks": ranks})]


def unconnected(config):
    """A whole run of one device in each rank, all at the same time and none aware of the others."""
    gate = turns.Gate(F.cross_entropy, rank=int(os.environ["RANK"]))
    for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"):
        os.environ.pop(name, None)
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")
    return train(RunConfig(**config, loss=gate))


def main(case):
    if case["ranks"]:
        launch(unconnected, case["ranks"], case["settings"], threads=case["settings"]["threads"])
        return
    with tempfile.TemporaryDirectory() as records:
        os.environ["HELPERS_RESULTS"] = records
        helpers.run(RunConfig(**case["settings"], loss=turns.Gate(F.cross_entropy)))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

"""Runs the scripts of frameworks that need environments of their own; shows a recorded run where there is none."""

import json
import os
import subprocess
from pathlib import Path

from helpers.launcher import progress
from helpers.paths import project_root

SCRIPTS = {"keras": "keras_fit.py", "mxnet": "mxnet_gluon.py", "caffe": "caffe_solver.py"}


def python_of(name):
    """The path of the interpreter with that framework, whether it is there or not."""
    return os.environ.get(f"HELPERS_{name.upper()}_PYTHON") or str(project_root() / f".venv-{name}" / "bin" / "python")


def run_or_show(name):
    """What the script of a framework ("keras", "mxnet" or "caffe") finds on two ranks, and where that is from.

    Returns:
        (found, said): what the script prints, and a sentence for the reader.

    Raises:
        RuntimeError: the environment is there and the script fails in it; with the end of what it printed.
    """
    root, python = project_root(), python_of(name)
    if not os.access(python, os.X_OK):
        record = json.loads((root / "recorded" / "hvd" / f"{name}.json").read_text(encoding="utf-8"))
        main = ("keras", "tensorflow", "mxnet", "caffe", "python", "torch")
        versions = ", ".join(f"{what} {record['versions'][what]}" for what in main if what in record["versions"])
        return record["found"], f"recorded {record['date']} ({versions}); to run it here: make {name}"
    script = str(Path(__file__).with_name(SCRIPTS[name]))
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", script]
    environment = dict(os.environ, PYTHONPATH=str(root), OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    with progress.waiting(f"the {name} script on two ranks, in its own environment"):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not answers:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
    return json.loads(answers[-1]), "run here, just now"


def outcome(found):
    """(largest difference to the weights of one process, whether the ranks are equal, loss at first and at last)."""
    return found["difference_to_one_process"], found["ranks_equal"], (found["losses"][0], found["losses"][-1])

"""Lessons in frameworks that have an environment of their own: run where it is, shown as recorded where it is not."""

import json
import os
import subprocess

from ...launcher import progress
from ...paths import project_root

LESSONS = {"keras": "keras_fit.py", "mxnet": "mxnet_gluon.py", "caffe": "caffe_solver.py"}


def run_or_show(name, ranks=2, timeout=120):
    """What the lesson of a framework ("keras", "mxnet" or "caffe") finds on `ranks` ranks, and where that is from.

    Returns:
        (found, said): what the lesson prints, and a sentence for the reader.

    Raises:
        RuntimeError: the environment is there and the lesson fails in it; with the end of what it printed.
    """
    root = project_root()
    python = os.environ.get(f"HELPERS_{name.upper()}_PYTHON") or str(root / f".venv-{name}" / "bin" / "python")
    if not os.access(python, os.X_OK):
        kept = json.loads((root / "recorded" / "hvd" / f"{name}.json").read_text(encoding="utf-8"))
        main = ("keras", "tensorflow", "mxnet", "caffe", "python", "torch")
        versions = ", ".join(f"{what} {kept['versions'][what]}" for what in main if what in kept["versions"])
        return kept.get("found") or kept["facts"], f"recorded {kept['date']} ({versions}); to run it here: make {name}"
    command = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    command.append(str(root / "helpers" / "hvd" / "lessons" / LESSONS[name]))
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment = dict(kept, PYTHONPATH=str(root), OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    with progress.waiting(f"the {name} lesson on {ranks} ranks, in its own environment"):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
    answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not answers:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
    return json.loads(answers[-1]), "run here, just now"


def outcome(found):
    """(largest difference to the weights of one process, whether the ranks are equal, loss at first and at last)."""
    named = {part: value for name, value in found.items() for part in ("difference", "equal") if part in name}
    return named["difference"], named["equal"], (found["losses"][0], found["losses"][-1])

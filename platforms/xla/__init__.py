"""Training through XLA, in an environment of its own.

torch_xla 2.9.0, its last release, needs torch 2.9 and cannot share an environment with the torch of
the notebooks. `make xla` makes .venv-xla for it, and the ranks of an XLA run use that interpreter:

    launch(function, 2, python=platforms.xla.python(), env=platforms.xla.environment())

This module imports neither torch nor torch_xla. Of the others, `loop` and `calls` can be imported
anywhere, those that import torch_xla only in that environment.

loop, run     the training loop of helpers.training.loop, on an XLA device
xla_step      one training step through XLA; ddp_step is the same with DDP, to be shown as a diff
gradients     the mean of all ranks' gradients, and a check that XLA knows of all ranks
compilations  how often XLA has compiled, and what a change of shape costs
calls         every call of the two source articles, and what it is today
"""

import difflib
import os
from pathlib import Path

from helpers.paths import project_root

FOLDER = ".venv-xla"
VARIABLE = "HELPERS_XLA_PYTHON"


class XlaMissing(FileNotFoundError):
    """There is no XLA environment; the text says how to get it."""


def python() -> Path:
    """The interpreter of the XLA environment: that of HELPERS_XLA_PYTHON, else of .venv-xla.

    Raises:
        XlaMissing: it is not there.
    """
    chosen = os.environ.get(VARIABLE)
    path = Path(chosen).expanduser() if chosen else project_root() / FOLDER / "bin" / "python"
    if not os.access(path, os.X_OK):
        where = f"{VARIABLE} names {chosen}, where no interpreter is" if chosen else f"there is no {FOLDER} here"
        raise XlaMissing(
            f"{where}. XLA runs in an environment of its own, with torch 2.9 and torch_xla 2.9: a download of "
            f"3 GB and 7 GB of disk, for Linux on x86-64. Make it with `make xla` in the project's folder"
        )
    return path


def is_here() -> bool:
    """Whether there is an XLA environment to run in; does not start it."""
    try:
        return bool(python())
    except XlaMissing:
        return False


def environment() -> dict:
    """Variables for the ranks of an XLA run: on XLA's own device, by default the CPU, and no other."""
    return {"HELPERS_DEVICE": "cpu", "PJRT_DEVICE": os.environ.get("PJRT_DEVICE", "CPU")}


def diff(context=3) -> str:
    """What changes from a training step with DDP to one through XLA: a unified diff of the two files that run."""
    names = ("ddp_step.py", "xla_step.py")
    before, after = (Path(__file__).with_name(name).read_text("utf-8").splitlines() for name in names)
    return "\n".join(difflib.unified_diff(before, after, *names, n=context, lineterm=""))

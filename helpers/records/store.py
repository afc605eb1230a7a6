"""What a run leaves behind: one JSON file, written whole or not at all."""

import hashlib
import json
import platform
import secrets
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from ..language import N_
from ..paths import check_writable, project_root, replace_file, results_root
from ..releases import version_of
from . import read

STATUSES = (N_("completed"), N_("failed"), N_("stopped"))
TRAINING = ("training/", "data/", "compiler/", "config.py", "settings.py", "device.py")


def new_record(config, machine, group="", launch=None) -> dict:
    """The record of a run that is about to start; `group` names the comparison it belongs to.

    `launch` is what `group.agent` gives: attempts of one launch have one record, that of the last.
    """
    started, token = launch or (time.time(), secrets.token_hex(3))
    begun = time.localtime(started)
    return {
        "schema": 1,
        "run_id": f"{time.strftime('%Y%m%d-%H%M%S', begun)}-{config.strategy}-{config.devices}-{token}",
        "group": group,
        "label": config.label,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z", begun),
        "status": "failed",  # until it has completed
        "error": None,
        "config": config.as_dict(),
        "environment": {"machine": machine.as_dict(), **surroundings()},
    }


def write(record, root=None) -> Path:
    """Save a record as `<root>/runs/<run_id>.json`; nobody ever sees half a file."""
    path = Path(root or results_root()) / "runs" / f"{record['run_id']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(record, indent=1))
    return path


def check_places(config) -> None:
    """Raises NotWritable where the record of a run, or its checkpoints, cannot be written."""
    remedy = "free space or make it writable, or set {} to another folder"
    check_writable(results_root() / "runs", "results", remedy.format("HELPERS_RESULTS"))
    if config.checkpoint_dir:
        check_writable(config.checkpoint_dir, "checkpoints", remedy.format("checkpoint_dir"))


def keep(record) -> None:
    """`write`; where that fails, print the run's numbers and write elsewhere, or print the record."""
    try:
        write(record)
        return
    except OSError as error:
        told = f"{read.in_a_line(record)}\nThe record could not be written ({error})"
    for place in (tempfile.gettempdir, Path.home, Path.cwd):
        with suppress(OSError, RuntimeError):
            print(f"{told}; it is in {write(record, place() / Path('helpers-results'))}", file=sys.stderr)
            return
    print(f"{told}, nor anywhere else:\n{json.dumps(record)}", file=sys.stderr)


def surroundings() -> dict:
    """Versions, operating system, and the state of the code that makes the run."""
    versions = {package: version_of(package) for package in ("torch", "torchvision", "numpy")}
    return {
        "versions": {"python": platform.python_version(), **versions},
        "system": platform.platform(),
        "code": code_state(),
    }


@lru_cache
def code_state() -> dict:
    """Git commit, with "-dirty" if files differ from it (None outside a clone), and `training_hash`."""
    command = ["git", "-C", str(project_root()), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        commit = subprocess.check_output(command, text=True, timeout=5, stderr=subprocess.DEVNULL).strip()
    except (OSError, subprocess.SubprocessError):
        commit = None
    return {"commit": commit, "training_sha256": training_hash()}


def training_hash(package=Path(__file__).parents[1]) -> str:
    """SHA-256 of TRAINING, the files that decide how a run comes out: others may change without another hash."""
    found = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        if path.relative_to(package).as_posix().startswith(TRAINING):
            found.update(path.read_bytes())
    return found.hexdigest()

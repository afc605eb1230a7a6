"""What a run leaves behind: one JSON file, written whole or not at all."""

import hashlib
import json
import platform
import secrets
import subprocess
import time
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..paths import project_root, replace_file, results_root

SCHEMA = 1
STATUSES = ("completed", "failed", "stopped")
TRAINING = ("training/", "data/", "compiler/", "config.py", "settings.py", "device.py")


def new_record(config, machine, group="", launch=None) -> dict:
    """The record of a run that is about to start; `group` names the comparison it belongs to.

    `launch` is what `group.agent` gives: attempts of one launch have one record, that of the last.
    """
    started, token = launch or (time.time(), secrets.token_hex(3))
    now = time.strftime("%Y%m%d-%H%M%S", time.localtime(started))
    name = f"{config.strategy}-{config.devices}"
    return {
        "schema": SCHEMA,
        "run_id": f"{now}-{name}-{token}",
        "group": group,
        "label": config.label,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(started)),
        "status": "failed",  # until it has completed
        "error": None,
        "config": config.as_dict(),
        "environment": {"machine": machine.as_dict(), **surroundings()},
    }


def write(record, root=None) -> Path:
    """Save a record as `<root>/runs/<run_id>.json`; nobody ever sees half a file."""
    folder = Path(root or results_root()) / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{record['run_id']}.json"
    replace_file(path, json.dumps(record, indent=1))
    return path


def surroundings() -> dict:
    """Versions, operating system, and the state of the code that makes the run."""
    return {"versions": dict(_versions()), "system": platform.platform(), "code": code_state()}


@lru_cache
def _versions():
    found = {"python": platform.python_version()}
    for package in ("torch", "torchvision", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


@lru_cache
def code_state() -> dict:
    """Git commit (None outside a clone), whether files differ from it, and hashes of the package (see `hashes`)."""
    commit = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "modified": None if changed is None else bool(changed), **hashes()}


def hashes(package=Path(__file__).parents[1]) -> dict:
    """SHA-256 of all code of the package, and of TRAINING: the files that decide how a run comes out.

    The second stays the same while only what shows, checks or explains runs changes.
    """
    whole, training = hashlib.sha256(), hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content = path.read_bytes()
        whole.update(content)
        if path.relative_to(package).as_posix().startswith(TRAINING):
            training.update(content)
    return {"helpers_sha256": whole.hexdigest(), "training_sha256": training.hexdigest()}


def _git(*arguments):
    try:
        done = subprocess.run(
            ["git", "-C", str(project_root()), *arguments], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()

"""The signatures of helpers.hvd are those of Horovod 0.28.1 (the table is in hvd_cases/api.py)."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.hvd.core import errors

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).parent / "hvd_cases" / "api.py"
ELSEWHERE = {"tensorflow": "keras", "keras": "keras", "mxnet": "mxnet"}  # framework -> its environment


@pytest.mark.parametrize(
    "framework", ["torch", *(pytest.param(name, marks=getattr(pytest.mark, of)) for name, of in ELSEWHERE.items())]
)
def test_signatures_are_those_of_horovod(framework):
    python, group = sys.executable, ELSEWHERE.get(framework)
    if group:
        python = os.environ.get(f"HELPERS_{group.upper()}_PYTHON") or ROOT / f".venv-{group}" / "bin" / "python"
    if not os.access(python, os.X_OK):
        pytest.skip(f"there is no environment for it here: make {group}")
    environment = dict(os.environ, PYTHONPATH=str(ROOT), TF_CPP_MIN_LOG_LEVEL="3")
    run = subprocess.run([python, TABLE, framework], env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-2000:]
    assert json.loads(run.stdout.splitlines()[-1]) == []


def test_errors_come_from_another_process_as_they_were():
    given = errors.NotInitialized(), errors.HostsUpdatedInterrupt()
    missing, changed = (pickle.loads(pickle.dumps(error)) for error in given)
    assert "hvd.init()" in str(missing) and changed.skip_sync is False

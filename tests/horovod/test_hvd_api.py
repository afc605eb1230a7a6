"""The signatures of platforms.horovod are those of Horovod 0.28.1 (the table is in hvd_cases/api.py)."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from hvd_cases import api

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = {"tensorflow": "keras", "keras": "keras", "mxnet": "mxnet"}  # framework -> its environment


def test_signatures_are_those_of_horovod():
    assert api.differences("torch") == []


@pytest.mark.parametrize(
    "framework", [pytest.param(name, marks=getattr(pytest.mark, of)) for name, of in ELSEWHERE.items()]
)
def test_signatures_are_those_of_horovod_in_an_environment_of_its_own(framework):
    group = ELSEWHERE[framework]
    python = os.environ.get(f"HELPERS_{group.upper()}_PYTHON") or ROOT / f".venv-{group}" / "bin" / "python"
    if not os.access(python, os.X_OK):
        pytest.skip(f"there is no environment for it here: make {group}")
    environment = dict(os.environ, PYTHONPATH=str(ROOT), TF_CPP_MIN_LOG_LEVEL="3")
    run = subprocess.run(
        [python, api.__file__, framework], env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert json.loads(run.stdout.splitlines()[-1]) == []

"""Every public operation of platforms.horovod at 1 to 4 ranks, against a NumPy oracle; the cases are in hvd_cases/."""

import ast
import subprocess
import sys

import pytest
from hvd_cases import lab
from kernel import ROOT

import helpers

QUICK = [(1, lab.LARGER, 1), (2, lab.LARGER, 1), (3, lab.LARGER, 3), (3, lab.SECTIONS, 1)]  # 3 divides nothing evenly
LONG = [(1, lab.SECTIONS, 1), (2, lab.SECTIONS, 1), (3, lab.LARGER, 1), (4, lab.SECTIONS, 1)]


@pytest.mark.parametrize("size, sections, needed", QUICK + [pytest.param(*one, marks=pytest.mark.long) for one in LONG])
def test_every_case(size, sections, needed):
    """The cases of the sections that need so many ranks or more."""
    helpers.launch(lab.run, size, sections, needed, threads=1, timeout=1800)


@pytest.mark.parametrize("size, capacity", [(2, "0"), *(pytest.param(n, "5", marks=pytest.mark.long) for n in (2, 4))])
def test_steps_that_repeat_with_few_numbers(size, capacity):
    env = {"HOROVOD_CACHE_CAPACITY": capacity, "HOROVOD_FUSION_THRESHOLD": "30", "HOROVOD_CYCLE_TIME": "1"}
    helpers.launch(lab.run, size, ("repeat", "join", "mismatch"), threads=1, timeout=1800, env=env)


def test_the_core_knows_no_framework():
    code = "import platforms.horovod.core, sys; assert not {'torch', 'numpy', 'tensorflow'} & set(sys.modules), "
    "'a framework'"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=1800)


def test_what_mxnet_s_ranks_import_can_be_read_by_python_3_8():
    folders = [ROOT / "platforms" / "horovod", ROOT / "helpers" / "launcher"]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    files += [ROOT / name for name in ("helpers/__init__.py", "helpers/device.py", "tests/horovod/mxnet_ranks.py")]
    for path in files:
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 8))

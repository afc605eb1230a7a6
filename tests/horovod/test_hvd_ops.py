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


def test_the_core_imports_neither_a_framework_nor_helpers():
    """MXNet's ranks run on Python 3.8, which helpers is not written for."""
    code = (
        "import sys, platforms.horovod.core, platforms.horovod.start; "
        "sys.exit(bool({'torch', 'numpy', 'tensorflow', 'helpers'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=1800)


def test_what_mxnet_s_ranks_import_can_be_read_by_python_3_8():
    files = [*(ROOT / "platforms").glob("*.py"), *(ROOT / "platforms" / "horovod").rglob("*.py")]
    for path in [*files, ROOT / "tests" / "horovod" / "mxnet_ranks.py"]:
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 8))

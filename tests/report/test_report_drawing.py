"""Figures of a page are the same whoever draws them."""

import os
import subprocess
import sys
from pathlib import Path

from benchmarks import growth_records

HERE = Path(__file__).resolve().parent


def test_processes_draw_what_this_one_would(tmp_path):
    growth_records.write(tmp_path / "records", 14)
    done = subprocess.run(
        [sys.executable, str(HERE / "report_drawing_script.py"), str(tmp_path / "records"), str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": str(HERE.parent)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.split()[-1] == "done", done.stdout + done.stderr
    assert not done.stderr, done.stderr

"""The command for a machine with a GPU, tried without one."""

import json
import subprocess
import sys

import pytest
from kernel import ROOT

from helpers.records import read
from tools import gpu_check


def test_what_fails_or_is_late_is_noted_and_the_rest_goes_on(tmp_path, monkeypatch, capsys):
    def breaks(check):
        raise RuntimeError("no such device")

    def late(check):
        return {"left": check.left(5)}

    def works(check):
        return {"answer": {"deep": 1.5}}

    monkeypatch.setattr(gpu_check, "SECTIONS", {breaks: 9, late: -1, works: 9})
    monkeypatch.setattr(gpu_check.os, "environ", dict(gpu_check.os.environ))
    assert gpu_check.main(["--device", "cpu", "--out", str(tmp_path)]) == 1
    found = json.loads((tmp_path / "check.json").read_text())
    assert "no such device" in found["breaks"]["failed"] and "no time is left" in found["late"]["failed"]
    assert found["works"]["answer"] == {"deep": 1.5} and "  - deep: 1.5" in (tmp_path / "summary.md").read_text()


@pytest.mark.long
def test_all_of_it_runs_on_a_cpu(tmp_path):
    words = ["--device", "cpu", "--small", "--seconds", "2400", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "tools/gpu_check.py", *words], cwd=ROOT, capture_output=True, text=True, timeout=2700
    )
    found = json.loads((tmp_path / "check.json").read_text())
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert all(rung["step (s)"] > 0 for rung in found["ladder"]["rungs"].values())
    assert len(read.read(tmp_path / "records.json").records) == len(found["ladder"]["rungs"])
    assert found["tests"]["passed"] >= 5 and not found["tests"]["failures"]
    assert found["start"]["first launch (s)"] > 0 and found["loop"]["kit / a loop that waits"] > 0

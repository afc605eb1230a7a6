"""Records are whole or absent whenever their writer is killed; what identifies the machine and the code of a run."""

import inspect
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import warnings

import pytest
from kernel import ROOT
from records import planted

import helpers
from helpers import RankError, device, launch
from helpers.comparison.run import ready
from helpers.paths import NotWritable
from helpers.records import read, store
from helpers.training import checkpoint


def die_at(at, module, folder):
    """Let this process die at moment `at`: each opening, half of a write, renaming and removal in `folder` is one."""
    moments = itertools.count(1)

    def moment():
        if next(moments) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    class InHalves(io.FileIO):
        def write(self, data):
            half = super().write(data[: len(data) // 2])
            moment()
            return half + super().write(data[half:])

    def audit(event, arguments):
        if event in ("open", "os.rename", "os.remove") and folder in str(arguments[0]):
            moment()

    sys.addaudithook(audit)
    module.open = InHalves


# A process without torch forks one child for each moment to die at: far quicker than a new Python each.
KILLED = f"""
import io, itertools, json, os, signal, sys
from helpers import paths
from helpers.records import store

{inspect.getsource(die_at)}

folder, record = sys.argv[1], json.loads(sys.argv[2])
for at in itertools.count(1):
    if (child := os.fork()) == 0:
        die_at(at, paths, folder)
        store.write({{**record, "run_id": str(at)}}, folder)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != -signal.SIGKILL:
        break
print(at)
"""


def test_killed_between_the_steps_of_writing(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path), json.dumps(planted())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    assert int(done.stdout) == 5, "opened, half written, renamed, removed, and then nothing is left to die at"
    found = read.read(tmp_path)
    assert {record["run_id"] for record in found.records} == {"4", "5"} and not found.skipped
    whole = (tmp_path / "runs" / "5.json").read_text()
    (tmp_path / "runs" / "b.json").write_text(whole[: len(whole) // 2])  # as a less careful writer would leave it
    found = read.read(tmp_path)
    assert len(found.records) == 2 and found.skipped[0][0] == "runs/b.json"


def save_and_die(folder, at):
    import torch

    die_at(at, checkpoint, folder)
    for step in range(1, 100):
        checkpoint.save(folder, step, {"step": step, "weights": torch.full((10_000,), float(step))})


LONG = [pytest.param(at, marks=pytest.mark.long) for at in (1, 3, 9, 11, 13)]


@pytest.mark.parametrize("at", [2, 10, 12, *LONG])
def test_checkpoints_killed_while_they_are_saved(tmp_path, at):
    with pytest.raises(RankError, match="SIGKILL"):
        launch(save_and_die, 1, str(tmp_path), at)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state = checkpoint.latest(tmp_path)
    if at > 4:
        assert state is not None, "the checkpoints before it are gone"
    assert state is None or (state["weights"] == state["step"]).all()


# -- places that cannot be written -------------------------------------------------------


def test_places_that_cannot_be_written_are_found_before_a_run_starts(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(NotWritable, match="checkpoints cannot be written to .*file .*checkpoint_dir"):
        ready(helpers.RunConfig(checkpoint_dir=tmp_path / "file"))
    assert ready(helpers.RunConfig(checkpoint_dir=tmp_path / "new")) and not any((tmp_path / "new").iterdir())
    monkeypatch.setenv("HELPERS_RESULTS", str(tmp_path / "file"))
    with pytest.raises(NotWritable, match="results cannot be written to .*file/runs .*HELPERS_RESULTS"):
        ready(helpers.RunConfig())


def test_a_record_that_cannot_be_written_goes_elsewhere_with_its_numbers(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("HELPERS_RESULTS", str(tmp_path / "file"))
    monkeypatch.setattr(store.tempfile, "gettempdir", lambda: str(tmp_path / "other"))
    store.keep(planted())
    told = capsys.readouterr().err
    [path] = (tmp_path / "other").rglob("*.json")
    assert f"it is in {path}" in told and "images/s" in told and json.loads(path.read_text()) == planted()
    for nowhere in ("gettempdir", "home", "cwd"):
        place = store.tempfile if nowhere == "gettempdir" else store.Path
        monkeypatch.setattr(place, nowhere, lambda: str(tmp_path / "file"))
    store.keep(planted())
    assert json.loads(capsys.readouterr().err.splitlines()[-1]) == planted()


# -- machine and code ---------------------------------------------------------------------


CPUINFO = "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu sse avx2 avx512f avx512_bf16 amx_tile amx_bf16\n\n"


def test_a_machine_says_what_its_cpu_can_compute(tmp_path, monkeypatch):
    monkeypatch.setattr(device.Path, "read_text", lambda path: CPUINFO * 2)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    device._cpuinfo.cache_clear()
    try:
        here = device.machine("cpu")
        about = json.loads(json.dumps(here.as_dict()))
    finally:
        device._cpuinfo.cache_clear()
    assert here.name == "Some CPU" and about["cores"] == here.cores
    assert about["instructions"] == ["avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16"]
    assert about["capability"] and about["limits"]["ONEDNN_MAX_CPU_ISA"] == "AVX2"

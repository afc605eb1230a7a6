"""Records are whole or absent whenever their writer is killed; what identifies the machine and the code of a run."""

import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from records import planted

import helpers
from helpers import RankError, device, launch
from helpers.records import read, store
from helpers.training import checkpoint

ROOT = Path(__file__).resolve().parents[2]

# A process without torch forks one child for each moment to die at: far quicker than a new Python each.
KILLED = """
import io, json, os, signal, sys
from helpers import paths
from helpers.records import store

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def dead(child):
    '''Run `child` in a fork; whether it was killed rather than ended.'''
    pid = os.fork()
    if pid == 0:
        try:
            child()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL

class Half(io.FileIO):
    def write(self, data):
        super().write(data[: len(data) // 2])
        die()

def half():
    paths.open = Half

def audited(event):
    return lambda: sys.addaudithook(lambda e, args: die() if e == event and ".tmp" in str(args[0]) else None)

def wrapped(function, after):
    def plant():
        usual = getattr(os, function)
        def instead(*arguments):
            if after: usual(*arguments)
            die()
        setattr(os, function, instead)
    return plant

def write(name, plant):
    plant()
    store.write({**record, "run_id": name}, sys.argv[1])

record = json.loads(sys.argv[2])
plants = {f"before {event}": audited(event) for event in ("open", "os.rename", "os.remove")}
plants |= {f"after {function}": wrapped(function, True) for function in ("fsync", "replace")}
plants |= {"before fsync": wrapped("fsync", False), "half a write": half}
print(json.dumps([name for name in plants if dead(lambda: write(name, plants[name]))]))
"""


def sound(root):
    """All records below `root`, without a warning about files that are none."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return read.read_all(root)


def test_killed_between_the_steps_of_writing(tmp_path):
    """Before opening, renaming and removing a file, within a write, before and after what the system does."""
    command = [sys.executable, "-c", KILLED, str(tmp_path), json.dumps(planted())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    early = {"before open", "half a write", "before fsync", "after fsync", "before os.rename"}
    assert set(json.loads(done.stdout)) == early | {"after replace", "before os.remove"}
    assert {record["run_id"] for record in sound(tmp_path)} == {"after replace", "before os.remove"}
    whole = (tmp_path / "runs" / "after replace.json").read_text()
    (tmp_path / "runs" / "b.json").write_text(whole[: len(whole) // 2])  # as a less careful writer would leave it
    with pytest.raises(UserWarning, match="b.json is not a readable record"):
        sound(tmp_path)


def save_and_die(folder, at):
    """On a rank: save checkpoints; die at moment `at`, counting each opening, half of a write, renaming and removal."""
    import torch

    from helpers.training import checkpoint

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
    checkpoint.open = InHalves
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


# -- machine and code ---------------------------------------------------------------------


def test_which_files_change_the_training_hash(tmp_path):
    trains = ("training/loop.py", "data/loaders.py", "compiler/plan.py", "config.py", "settings.py", "device.py")
    others = ("plots/style.py", "report/page.py", "records/store.py", "training_of_tomorrow.py")
    package = tmp_path / "helpers"
    shutil.copytree(Path(helpers.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in trains + others:
        before = store.training_hash(package)
        with open(package / file, "a", encoding="utf-8") as code:
            code.write("# one more line\n")
        assert (store.training_hash(package) != before) == (file in trains), file


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

"""Records and checkpoints under SIGKILL at any moment: readable or absent, never half."""

import io
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path

import pytest

from helpers import RankError, launch
from helpers.records import store
from helpers.training import checkpoint

ROOT = Path(__file__).resolve().parents[2]

# A process without torch that forks one child for each moment to die at; far quicker than a new Python each.
FORKS = """
import json, os, random, signal, sys, time
from helpers import paths, results

def record(name, version, size=2000):
    text = chr(97 + version % 26) * size
    return {"schema": results.SCHEMA, "status": "completed", "run_id": name, "group": "g", "label": name,
            "version": version, "first": text, "last": text, "end": version}

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
"""


def forks(code, *arguments):
    """Run `code` after FORKS; what it prints, from JSON."""
    command = [sys.executable, "-c", FORKS + textwrap.dedent(code), *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def sound(root):
    """All records below `root`: whole ones, and not a word about others."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        records = store.read_all(root)
    for record in records:
        if "version" in record:
            assert record["version"] == record["end"] and record["first"] == record["last"], record["run_id"]
    return records


def left_over(root):
    return [path for path in (root / "runs").iterdir() if path.suffix != ".json"]


def test_killed_at_every_instruction_of_writing(tmp_path):
    """One child for each bytecode instruction of `write` and `replace_file`; every second one replaces a record."""
    killed = forks(
        """
        root = sys.argv[1]

        def die_at(instruction):
            left = [instruction]
            def inside(frame, event, arg):
                left[0] -= event == "opcode"
                if left[0] == 0:
                    die()
                return inside
            def anywhere(frame, event, arg):
                if frame.f_code.co_name in ("write", "replace_file"):
                    frame.f_trace_opcodes = True
                    return inside
            sys._getframe().f_trace_opcodes = True  # Python 3.12 looks for one such frame in settrace
            sys.settrace(anywhere)

        def child(at):
            if at % 2:
                results.write(record(f"r{at}", 0), root)
            die_at(at)
            results.write(record(f"r{at}", 1), root)

        at = 0
        while dead(lambda: child(at + 1)):
            at += 1
        print(at)
        """,
        tmp_path,
    )
    assert killed > 100
    versions = {record["run_id"]: record["version"] for record in sound(tmp_path)}
    assert versions[f"r{killed + 1}"] == 1, "the one that nobody killed"
    assert all(f"r{at}" in versions for at in range(1, killed + 1, 2)), "a record that was there is gone"
    assert versions["r1"] == 0 and "r2" not in versions and versions[f"r{killed}"] == 1
    assert left_over(tmp_path), "no child died between opening the file and renaming it"


def test_killed_between_the_steps_of_writing(tmp_path):
    """Before opening, renaming and removing a file, in the middle of a write, before and after what the system does."""
    killed = forks(
        """
        import io

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
            results.write(record(name, 1), sys.argv[1])

        plants = {f"before {event}": audited(event) for event in ("open", "os.rename", "os.remove")}
        plants |= {f"after {function}": wrapped(function, True) for function in ("fsync", "replace")}
        plants |= {"before fsync": wrapped("fsync", False), "half a write": half}
        print(json.dumps([name for name in plants if dead(lambda: write(name, plants[name]))]))
        """,
        tmp_path,
    )
    written = {record["run_id"] for record in sound(tmp_path)}
    early = {"before open", "half a write", "before fsync", "after fsync", "before os.rename"}
    assert set(killed) == early | {"after replace", "before os.remove"}
    assert written == {"after replace", "before os.remove"}


def test_killed_at_random_moments_while_others_read(tmp_path):
    """Writers of large and small records, killed from outside; a reader looks all the time."""
    command = textwrap.dedent(
        """
        def writer(number):
            version = 0
            while True:
                version += 1
                size = random.choice((10, 10_000, 2_000_000))
                results.write(record(f"w{number}", version, size), sys.argv[1])
                results.write(record(f"w{number}-{version % 5}", version, size), sys.argv[1])

        for number in range(40):
            pid = os.fork()
            if pid == 0:
                random.seed(number)
                writer(number % 6)
            time.sleep(random.uniform(0, 0.06))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        """
    )
    writing = subprocess.Popen([sys.executable, "-c", FORKS + command, str(tmp_path)], cwd=ROOT)
    looks = 0
    while writing.poll() is None:
        if (tmp_path / "runs").is_dir():
            sound(tmp_path)
            looks += 1
        time.sleep(0.02)
    assert writing.returncode == 0 and looks > 10
    assert len(sound(tmp_path)) > 6


def test_a_half_record_would_have_been_found(tmp_path):
    """What is left of a writer that is not as careful."""
    store.write({"schema": store.SCHEMA, "status": "completed", "run_id": "a", "group": "g"}, tmp_path)
    assert len(sound(tmp_path)) == 1
    whole = (tmp_path / "runs" / "a.json").read_text()
    (tmp_path / "runs" / "b.json").write_text(whole[: len(whole) // 2])
    with pytest.raises(UserWarning, match="b.json is not a readable record"):
        sound(tmp_path)


RUNS = """
from helpers import RunConfig, run
for number in range(1000):
    run(RunConfig(strategy="ddp", nproc_per_node=2, steps=3, local_batch=8, evaluate=False, label=f"r{number}"))
"""


def test_real_runs_killed_at_a_random_moment(tmp_path):
    """A process that runs again and again, killed some time after its first record."""
    env = {**os.environ, "HELPERS_RESULTS": str(tmp_path), "HELPERS_PROGRESS": "plain"}
    runs = subprocess.Popen([sys.executable, "-c", RUNS], cwd=ROOT, env=env, stdout=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while not list(tmp_path.glob("runs/*.json")):
        assert runs.poll() is None and time.monotonic() < end
        time.sleep(0.01)
    time.sleep(random.uniform(0, 0.7))
    runs.kill()
    runs.wait()
    records = sound(tmp_path)
    assert records and all(record["status"] == "completed" for record in records)


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


@pytest.mark.parametrize("at", [1, 2, 3, 9, 10, 11, 12, 13])
def test_checkpoints_killed_while_they_are_saved(tmp_path, at):
    with pytest.raises(RankError, match="SIGKILL"):
        launch(save_and_die, 1, str(tmp_path), at)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state = checkpoint.latest(tmp_path)
    if at > 4:
        assert state is not None, "the checkpoints before it are gone"
    assert state is None or (state["weights"] == state["step"]).all()

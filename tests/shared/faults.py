"""What goes wrong in a run of two ranks, and what `launch` makes of it: the same on every engine.

`PYTHONPATH=.:tests/shared python tests/shared/faults.py` prints the table for this machine and for Slurm.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import clusters
import torch.distributed as dist

import helpers
from helpers import RankError, RankTimeout, launch


def fail():
    with helpers.distributed() as world:
        if world.rank == 1:
            raise ValueError("one")
        dist.barrier()


def die():
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def hang(folder=None):
    print("here", flush=True)
    helpers.emit("here")
    if folder:
        (Path(folder) / f"{os.environ['RANK']}.new").write_text(str(os.getpid()))
        os.rename(Path(folder) / f"{os.environ['RANK']}.new", Path(folder) / os.environ["RANK"])
    time.sleep(600)


def interrupt(event):
    if event["rank"] == 1:
        signal.raise_signal(signal.SIGINT)


FAULTS = {  # name: what the ranks do, options of launch, the error, what it says
    "exception": (fail, {}, RankError, "rank 1 failed; the other ranks were stopped"),
    "kill": (die, {}, RankError, "rank 1 was killed by signal SIGKILL"),
    "hang": (hang, {"timeout": 3}, RankTimeout, "still running after 3 s|3 s"),
    "interrupt": (hang, {"on_event": interrupt}, KeyboardInterrupt, "stopped"),
    "no ranks": (fail, {"nprocs": 0}, ValueError, "at least 1 rank"),
    "uneven": (fail, {"nprocs": 3, "nodes": 2}, (ValueError, TypeError), "cannot be split evenly|nodes"),
    "argument": (fail, {"colour": "red"}, TypeError, "cannot be called with the arguments given to launch"),
}


def error_of(name, **engine):
    """The error of a fault, which is of the kind and says what it should, and the seconds that the launch took."""
    function, options, kind, says = FAULTS[name]
    began = time.monotonic()
    try:
        launch(function, **{"nprocs": 2, **engine, **options})
    except BaseException as error:
        assert isinstance(error, kind) and re.search(says, str(error)), repr(error)
        if name == "exception":
            assert 'raise ValueError("one")' in error.traceback and isinstance(error.exception, ValueError)
        if name == "hang":
            assert all("in hang" in error.stacks[rank] for rank in range(2)), error.stacks
        return error, time.monotonic() - began
    raise AssertionError(f"{name} went well")


def kill_notebook(**engine):
    """Kill a process whose two ranks run; the seconds until the ranks have ended, too."""
    with tempfile.TemporaryDirectory() as folder:
        code = f"from helpers import launch; from faults import hang; launch(hang, 2, {folder!r}, **{engine!r})"
        path = os.pathsep.join([os.getcwd(), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path}
        process = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.DEVNULL)
        written = [Path(folder) / rank for rank in "01"]
        until(lambda: process.poll() is not None or all(path.exists() for path in written))
        ranks = [int(path.read_text()) for path in written]
        process.kill()
        process.wait()
        return until(lambda: not any(map(alive, ranks)))


def alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition, seconds=300):
    """Wait; the seconds that it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + seconds, "it never happened"
        time.sleep(0.1)
    return time.monotonic() - began


def main():
    """Print the table."""
    engines, table = {"this machine": {}}, []
    with ExitStack() as stack:
        for name, missing in clusters.MISSING.items():
            if missing:
                print(f"no {name} here: {missing}")
            else:
                stack.enter_context(getattr(clusters, name)(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
                engines[name] = {"on": name, "nodes": 2}
        for fault in [*FAULTS, "kernel killed"]:
            table.append([fault])
            for engine in engines.values():
                if fault in FAULTS:
                    error, seconds = error_of(fault, **engine)
                    text = f"{type(error).__name__}: {str(error).splitlines()[0][:90]} ({seconds:.1f} s)"
                else:
                    text = f"ranks gone after {kill_notebook(**engine):.1f} s"
                table[-1].append(text)
    print("| fault |", " | ".join(engines), "|\n|" + "---|" * (len(engines) + 1))
    print("\n".join(f"| {' | '.join(row)} |" for row in table))


if __name__ == "__main__":
    main()

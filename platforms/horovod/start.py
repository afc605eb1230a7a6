"""Start N ranks on this machine: a command, as `horovodrun -np N` does, or a function, as `horovod.run` does."""

import multiprocessing
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent import futures
from contextlib import nullcontext

from helpers import releases
from helpers.launcher.supervisor import is_frozen

from .core.pulse import stall_times
from .imports import ROOT

GRACE = 3.0  # seconds that a rank has to end after it was asked to
TOGETHER = 2.0  # seconds; a rank that fails this soon after another failed with it, not because it was stopped
POLL = 0.02  # seconds between two looks at the ranks
WITHOUT = "; the other ranks finished without it"
LOCAL = ("localhost", "127.0.0.1")
INDIFFERENT = {"use_gloo", "use_mpi", "verbose", "start_timeout", "network_interface", "disable_cache"}


def start(command, count, verbose=False, least=None, elastic=None):
    """Run `command` (a list) as ranks 0 to count - 1; returns the exit status for the shell.

    Their output appears here, each line labelled with its rank. When fewer than `least` (default: all) have not failed,
    the others are stopped. `verbose`: show the command and the process of each rank. `elastic`: what starts more
    ranks while they run (a `discovery.Discovery`).
    """
    ranks = Ranks(command, verbose)
    for sig in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, _leave)
    try:
        with elastic or nullcontext():
            for environment in _environments(count):
                ranks.add(environment)
            code, outcome = elastic.follow(ranks) if elastic else _verdict(ranks.processes, least or count)
    except KeyboardInterrupt:
        code, outcome = 130, "interrupted; all ranks were stopped"
        _signal(ranks.processes, signal.SIGINT)
    finally:
        _stop(ranks.processes)
    for reader in ranks.readers:
        reader.join(1)  # not longer, because a process that outlives its rank may hold the pipe open
    if outcome:
        say(outcome)
    return code


def say(text):
    """A message of the starter."""
    print(f"platforms.horovod: {text}", file=sys.stderr, flush=True)


def slots(entries):
    """(slots of this machine, names of other machines) of `entries`, each "host", "host:slots" or empty.

    Raises:
        ValueError: an entry is neither.
    """
    own, elsewhere = 0, []
    for entry in filter(None, map(str.strip, entries)):
        name, colon, number = entry.partition(":")
        if not name or colon and not number.isdigit():
            raise ValueError(f"{entry!r} is not host:slots; localhost:2 would be")
        if name in (*LOCAL, socket.gethostname()):
            own += int(number or 1)
        else:
            elsewhere.append(name)
    return own, elsewhere


class Ranks:
    """The processes of a job, in the order of their start, which is the launcher's number of each."""

    def __init__(self, command, verbose=False):
        self.command, self.verbose, self._environment = command, verbose, {}
        self.processes, self.readers, self._lock = [], [], threading.Lock()

    def add(self, environment=None):
        """Start one more; without an `environment` it has that of the last one, but for its number."""
        number = str(len(self.processes))
        self._environment = environment or {**self._environment, "RANK": number, "LOCAL_RANK": number}
        rank, pipe = len(self.processes), subprocess.PIPE
        process = subprocess.Popen(
            self.command, env=self._environment, stdout=pipe, stderr=pipe, start_new_session=True
        )
        self.processes.append(process)
        if self.verbose:
            say(f"rank {rank} is process {process.pid}: {shlex.join(self.command)}")
        for pipe, out in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            self.readers.append(threading.Thread(target=_relay, args=(rank, pipe, out, self._lock), daemon=True))
            self.readers[-1].start()


def _environments(count):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    threads = max(1, (os.cpu_count() or 1) // count)
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), ROOT]))  # ranks can start in any folder
    for rank in range(count):
        environment = dict(
            os.environ,
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(count),
            LOCAL_WORLD_SIZE=str(count),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            PYTHONPATH=path,
            PYTHONUNBUFFERED="1",
            HELPERS_HVD_STARTER=str(os.getpid()),
        )
        environment.setdefault("OMP_NUM_THREADS", str(threads))
        yield environment


def tie_to_starter():
    """On a rank: be killed when the starter dies in any way (Linux)."""
    starter = os.environ.pop("HELPERS_HVD_STARTER", None)
    if starter and sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != int(starter):
            os._exit(1)


def _verdict(ranks, least):
    """Wait for all ranks, or until fewer than `least` have not failed: (exit status, a sentence or None)."""
    failed, until, running, frozen = {}, None, True, Frozen()
    while running and (until is None or time.monotonic() < until):
        time.sleep(POLL)
        running = [rank for rank in ranks if rank.poll() is None]
        failed.update((number, rank.returncode) for number, rank in enumerate(ranks) if rank.returncode)
        if len(ranks) - len(failed) < least and until is None:
            until = time.monotonic() + TOGETHER
        if least < len(ranks) and 0 < len(running) < len(ranks) and all(is_frozen(rank.pid) for rank in running):
            failed.update((ranks.index(rank), -signal.SIGSTOP) for rank in running)  # the survivors finished without it
            break
        if frozen.too_long({ranks.index(rank): rank.pid for rank in running}):
            failed.update((ranks.index(rank), -signal.SIGSTOP) for rank in running)
            break
    if not failed:
        return 0, None
    if len(ranks) - len(failed) >= least:
        return 0, told(failed) + WITHOUT
    others = [rank for number, rank in enumerate(ranks) if number not in failed and rank.poll() is None]
    rest = "; the others were stopped" if others else ""
    return status(failed), told(failed) + rest


class Frozen:
    """Whether all ranks that still run are stopped, so that none of them can miss another (see core/pulse.py)."""

    def __init__(self):
        self._warn, self._give_up = stall_times()
        self._since, self._named = time.monotonic(), False

    def too_long(self, running) -> bool:
        """Name them, {number: process}, after the first stall time; whether the second is over, too."""
        now = time.monotonic()
        if not (running and all(is_frozen(process) for process in running.values())):
            self._since, self._named = now, False
        stopped = now - self._since
        if self._warn and stopped > self._warn and not self._named:
            self._named = True
            who = ", ".join(f"rank {number} (process {process})" for number, process in running.items())
            say(f"{who}: stopped for {stopped:.1f} s (state T in ps; kill -CONT lets it go on)")
        return bool(self._give_up and stopped > self._give_up)


def _by_cause(failed):
    """In the order in which they failed. A rank that ends because it has lost another has status 1, so 1 comes last."""
    return sorted(failed.items(), key=lambda one: one[1] == 1)


def told(failed) -> str:
    """The ranks that have failed, {number: exit status}, in words."""
    return ", then ".join(f"rank {number} {_how(code)}" for number, code in _by_cause(failed))


def status(failed) -> int:
    """The exit status for the shell after ranks have failed; 1 if none has."""
    code = next((code for _, code in _by_cause(failed)), 1)
    return code if code > 0 else 128 - code


def _how(code):
    if code > 0:
        return f"failed with exit status {code}"
    if code == -signal.SIGSTOP:
        return "stood still"
    return f"was killed by {signal.Signals(-code).name}"


def _relay(number, pipe, out, lock):
    """Copy the lines of a pipe with a label; a carriage return also ends a line, so that progress bars move."""
    rest = b""
    while True:
        data = os.read(pipe.fileno(), 65536)
        *lines, rest = re.split(rb"(?<=[\n\r])", rest + data)
        if not data and rest:
            lines, rest = [*lines, rest + b"\n"], b""
        with lock:
            for line in lines:
                if text := releases.strip_gloo_banner(line.decode("utf-8", "backslashreplace")):
                    out.write(f"[rank {number}] {text}")
            out.flush()
        if not data:
            return


def _leave(number, frame):
    raise SystemExit(128 + number)


def _signal(ranks, number):
    for rank in ranks:
        if rank.poll() is None:
            try:
                os.killpg(rank.pid, number)
            except ProcessLookupError:
                pass


def _stop(ranks):
    """Stop all ranks and all their children, such as DataLoader workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not interrupt this
    until = time.monotonic() + GRACE
    if any(rank.poll() is None for rank in ranks):
        _signal(ranks, signal.SIGTERM)
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < until:
        time.sleep(POLL)
    for rank in ranks:
        try:
            os.killpg(rank.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


def run(func, args=(), kwargs=None, np=1, hosts=None, env=None, executable=None, **others):
    """Call `func(*args, **kwargs)` on `np` ranks; returns the list of their results, by rank.

    It is `helpers.launch` by Horovod's name: the ranks are fresh processes, what they print is labelled, and a
    rank that fails is a `helpers.RankError`. Options that choose between Horovod's own transports are accepted.

    Raises:
        ValueError: `hosts` is not host:slots or names another machine, or an option has no counterpart.
    """
    from helpers import releases

    if elsewhere := slots((hosts or "").split(","))[1]:
        raise ValueError(f"hosts names {elsewhere[0]}; ranks on several machines are started by mpirun or torchrun")
    unknown = sorted(name for name, value in others.items() if value is not None and name not in INDIFFERENT)
    if unknown:
        raise ValueError(f"run() has no counterpart here for {', '.join(unknown)}")
    try:
        releases.check()
    except releases.UnfitTorch:  # MXNet's Python has an older torch, on which `launch` does not run
        if executable not in (None, sys.executable):
            raise
        return _spawned(func, args, kwargs or {}, np, env or {})
    from helpers.launcher.launch import launch

    return launch(func, np, *args, python=executable, env=env, **(kwargs or {}))


def _spawned(func, args, kwargs, count, env):
    """`run` by multiprocessing: one fresh process a rank, whose output is not labelled; a lost one ends the others."""
    spawn = multiprocessing.get_context("spawn")
    pools = [futures.ProcessPoolExecutor(1, spawn) for _ in range(count)]
    calls = [
        pool.submit(_as_rank, {**environment, **env}, func, args, kwargs)
        for pool, environment in zip(pools, _environments(count))
    ]
    processes = [process for pool in pools for process in pool._processes.values()]
    try:
        for call in futures.as_completed(calls):
            if call.exception():
                rank = calls.index(call)
                raise RuntimeError(f"rank {rank} failed: {call.exception()}") from call.exception()
        return [call.result() for call in calls]
    finally:
        for process in processes:
            process.terminate()


def _as_rank(environment, func, args, kwargs):
    os.environ.update(environment)
    return func(*args, **kwargs)

"""Start N ranks on this machine by torchrun: a command, as `horovodrun -np N` does, or a function, as `horovod.run`."""

import logging
import os
import signal
import socket
import sys
import tempfile
from contextlib import ExitStack

from .imports import ROOT

LOCAL = ("localhost", "127.0.0.1")
RESTARTS = 100  # of all ranks, with --min-np
MEETING = ["--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0", "--monitor_interval=0.1"]
INDIFFERENT = {"use_gloo", "use_mpi", "verbose", "start_timeout", "network_interface", "disable_cache"}


def start(arguments, count, verbose=False, restarts=0, output=None):
    """Run `python -m platforms.horovod arguments…` as ranks 0 to count - 1; returns the exit status for the shell.

    Each line that they print is labelled with its rank. When one fails, the others are stopped, and with `restarts` all
    are started again. `output`: a folder for all they print.
    """
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    os.environ.update(PYTHONUNBUFFERED="1", HELPERS_HVD_STARTER=str(os.getpid()))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), ROOT]))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    if not verbose:
        logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    with ExitStack() as stack:
        logs = output or stack.enter_context(tempfile.TemporaryDirectory(prefix="helpers-hvd-"))
        options = [*MEETING, f"--nproc_per_node={count}", f"--max_restarts={restarts}", "--tee=3"]
        options += [f"--log_dir={logs}", f"--rdzv_id=hvd-{os.getpid()}"]
        if "--log-line-prefix-template" in run.get_args_parser().format_help():
            options.append("--log-line-prefix-template=[rank ${rank}] ")
        parsed = run.parse_args([*options, "-m", "platforms.horovod", *arguments])
        if verbose:
            say(f"torchrun {' '.join(options)} -m platforms.horovod {' '.join(arguments)}")
        try:
            run.run(parsed)
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            say(f"rank {rank} {_how(failure.exitcode)}{'; the others were stopped' if count > 1 else ''}")
            return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
        except (SignalException, KeyboardInterrupt) as error:
            say("interrupted; all ranks were stopped")
            return 128 + getattr(error, "sigval", signal.SIGINT)
    return 0


def _how(code):
    return f"failed with exit status {code}" if code > 0 else f"was killed by {signal.Signals(-code).name}"


def say(text):
    """A message of the starter."""
    print(f"platforms.horovod: {text}", file=sys.stderr, flush=True)


def slots(entries):
    """(slots of this machine, names of other machines) of "host", "host:slots" or empty ones; ValueError for others."""
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


def tie_to_starter():
    """On a rank: be killed when the starter dies in any way (Linux)."""
    starter = os.environ.pop("HELPERS_HVD_STARTER", None)
    if starter and sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != int(starter):
            os._exit(1)


def run(func, args=(), kwargs=None, np=1, hosts=None, env=None, executable=None, **others):
    """Call `func(*args, **kwargs)` on `np` ranks; returns the list of their results, by rank.

    It is `helpers.launch` by Horovod's name: the ranks are fresh processes, what they print is labelled, and a
    rank that fails is a `helpers.RankError`. Options that choose between Horovod's own transports are accepted.
    """
    if elsewhere := slots((hosts or "").split(","))[1]:
        raise ValueError(f"hosts names {elsewhere[0]}; ranks on several machines are started by mpirun or torchrun")
    unknown = sorted(name for name, value in others.items() if value is not None and name not in INDIFFERENT)
    if unknown:
        raise ValueError(f"run() has no counterpart here for {', '.join(unknown)}")
    if sys.version_info < (3, 10):
        raise ValueError(
            "horovod.run needs Python 3.10; start the ranks by python -m platforms.horovod -np N script.py"
        )
    from helpers.launcher.launch import launch

    return launch(func, np, *args, python=executable, env=env, **(kwargs or {}))

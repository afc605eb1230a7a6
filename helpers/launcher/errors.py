"""Errors of a launched run, and their messages."""

from __future__ import annotations  # platforms.horovod is imported on Python 3.8, too

import os
import signal
import traceback
from dataclasses import dataclass
from types import MethodType

from .language import Told, marked, said

OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep  # files whose frames are left out of tracebacks and stacks


def shown(error):
    """What IPython shows of `error`: the reader's own lines and the message, without the frames of the launcher.

    IPython's own view of all frames takes 1 s in a new kernel on a busy machine, while the reader waits.
    """
    import IPython

    shell = IPython.get_ipython()
    if error.__cause__ or (error.__context__ and not error.__suppress_context__):
        return shell.InteractiveTB.structured_traceback(type(error), error, error.__traceback__, tb_offset=1)
    named = getattr(shell.compile, "format_code_name", lambda _: None)  # "Cell", "In[3]"
    lines = [
        f"{' '.join(named(file) or ('File', file))}, line {number}, in {function}\n    {line}"
        for file, number, function, line in traceback.extract_tb(error.__traceback__)
        if not file.startswith((OURS, os.path.dirname(IPython.__file__) + os.sep))
    ]
    return ["Traceback (most recent call last):", *lines, f"{type(error).__name__}: {said(str(error))}"]


def translate_tracebacks(shell):
    """Have an IPython shell show the text of errors in the reader's language."""
    plain = shell.InteractiveTB.structured_traceback

    def translated(kind, error, *rest, **options):
        *frames, last = plain(kind, error, *rest, **options)
        return [*frames, last.replace(str(error), said(str(error)))]

    shell.InteractiveTB.structured_traceback = translated


def interrupted(text):
    """The KeyboardInterrupt of ranks that the reader has stopped."""
    error = KeyboardInterrupt(text)
    error._render_traceback_ = MethodType(shown, error)
    return error


class RankError(Told, RuntimeError):
    """A rank failed; the other ranks were stopped, or interrupted where they are kept (`helpers.ranks`).

    Attributes:
        rank: the rank that failed first.
        exception: the rank's own exception if it could be sent back, else None
            (also None for a rank that was killed or left without an answer).
        traceback: the rank's traceback as text ("" for a rank that was killed).
        exitcode: the exit code of a rank that ended without an answer, negative for a signal.
    """

    def __init__(self, message, rank=None, exception=None, traceback="", exitcode=None):
        super().__init__(message)
        self.rank, self.exception, self.traceback, self.exitcode = rank, exception, traceback, exitcode

    _render_traceback_ = shown


class RankTimeout(RankError, TimeoutError):
    """The run did not end in time; `stacks` maps each rank to where it stood."""

    def __init__(self, message, stacks):
        super().__init__(message)
        self.stacks = stacks


class OutOfMemory(MemoryError):
    """In a rank: it would have held more than `launch(…, memory=…)` allows it."""


class RankOutOfMemory(RankError, MemoryError):
    """A rank would have held more than `launch(…, memory=…)` allows it; the other ranks were stopped."""


class RunStopped(RuntimeError):
    """A run in the background was stopped before its end; it has no result."""


class LauncherError(RuntimeError):
    """The fork server could not be started or was lost: no rank is to blame."""


@dataclass
class Failure:
    """One rank's unhappy end, as the supervisor saw it."""

    rank: int
    when: float  # time.monotonic(), one clock for all processes of a machine
    text: str = ""  # traceback; empty when the rank could not report
    exception: BaseException | None = None
    exitcode: int | None = None

    @property
    def secondary(self) -> bool:
        """Whether this rank only noticed that a peer was gone."""
        return any(sign in self.text for sign in LOST_PEER)


# What gloo, NCCL and the store say on a rank that waited for one which has died.
LOST_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "Socket closed",
    "Socket is not open",
    "remote process exited or there was a network error",
    "recvValue failed",
    "sendBytes failed",
    "recvBytes failed",
    "Failed to recv",
)


ITS_TRACEBACK, WHERE = marked("Its traceback:"), marked("Where they stood:")


def in_short(error) -> str:
    """What went wrong in one line: which rank, and the last line of its traceback if it could send one."""
    lines = [line for line in getattr(error, "traceback", "").splitlines() if line.strip()]
    text = f"rank {error.rank}: {lines[-1]}" if lines else str(error)
    return said(text.partition("\n")[0])


def first_failure(failures):
    """The failure that caused the others: the earliest that is not a lost connection."""
    return min(failures, key=lambda failure: (failure.secondary, failure.when))


def rank_error(failures, finished, world_size, kept=False):
    """The RankError for a run with `failures`; `finished` ranks had already returned; whether the others are `kept`."""
    failure = first_failure(failures)
    beyond = isinstance(failure.exception, OutOfMemory)
    message = _ending(failure, beyond)
    if world_size > 1 and kept:
        message = marked(f"{message}; the others were interrupted, and all keep what they hold")
    elif world_size > 1:
        message = marked(f"{message}; the other ranks were stopped")
    message += "."
    if failure.text:
        message += f" {ITS_TRACEBACK}\n\n{failure.text.rstrip()}"
    if failure.secondary and finished:
        message += "\n\n" + marked(
            f"Rank {failure.rank} was waiting for a peer that had gone: rank "
            f"{', '.join(map(str, sorted(finished)))} had already returned. Every rank has to call "
            "the same collectives, the same number of times."
        )
    also = sorted(f.rank for f in failures if f is not failure and not f.secondary)
    if also:
        message += "\n\n" + marked(f"Rank {', '.join(map(str, also))} failed too, a moment later.")
    kind = RankOutOfMemory if beyond else RankError
    return kind(message, failure.rank, failure.exception, failure.text, failure.exitcode)


def _ending(failure, beyond):
    """What became of a rank."""
    rank, exitcode = failure.rank, failure.exitcode
    if beyond:
        return marked(f"rank {rank} is out of memory: {failure.exception}")
    if failure.text:
        return marked(f"rank {rank} failed")
    if exitcode is None or exitcode >= 0:
        return marked(f"rank {rank} left with exit code {exitcode} before its function returned")
    killed = marked(f"rank {rank} was killed by signal {_signal_name(-exitcode)}")
    return killed + {
        -signal.SIGKILL: ". "
        + marked(
            "Nothing in the program does that by itself: very often the system ran out of memory. Try a smaller batch "
            "or fewer ranks"
        ),
        -signal.SIGSEGV: ". " + marked("Its last stack is in the output above, if it could be written"),
    }.get(exitcode, "")


def _signal_name(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


ALL_STOPPED = marked("all ranks were stopped")


def timeout_error(seconds, stacks, waiting, world_size, others=ALL_STOPPED):
    """The error for a run of `world_size` ranks of which `waiting` were not done in time."""
    late = ", ".join(map(str, waiting))
    told = marked(f"no result after {seconds:g} s: rank {late} of {world_size} had not returned")
    return RankTimeout(f"{told}; {others}. {WHERE}\n\n{stacks_text(stacks, waiting)}", stacks)


def frozen_text(rank, pid):
    """What to say of a rank that was stopped by a signal."""
    return marked(
        f"rank {rank} (process {pid}) is stopped, state T; the others wait for it. To let it go on: kill -CONT {pid}"
    )


def stacks_text(stacks, ranks):
    """Where each of `ranks` stood, as text."""
    unknown = "    (gave no answer: stopped by the system, or busy outside Python)"
    return "\n".join(f"rank {r}:\n{stacks.get(r) or unknown}" for r in ranks)

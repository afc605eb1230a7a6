"""Errors of a launched run, and their messages."""

import os
import re
import signal
import sys
import traceback
from dataclasses import dataclass

# Folders of files whose frames are left out of tracebacks and stacks.
_HELPERS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OURS = tuple(os.path.join(_HELPERS, room, "") for room in ("launcher", "persistent", "group"))


def shown(error):
    """What IPython shows of `error`: the reader's own lines and the message, without the frames of the launcher.

    IPython's own view of all frames takes 1 s in a new kernel on a busy machine, while the reader waits.
    """
    import IPython

    shell = IPython.get_ipython()
    if error.__cause__ or (error.__context__ and not error.__suppress_context__):  # what came before stays
        return shell.InteractiveTB.structured_traceback(type(error), error, error.__traceback__, tb_offset=1)
    lines = [
        in_cells(f'File "{file}", line {number}, in {function}\n    {line}')
        for file, number, function, line in traceback.extract_tb(error.__traceback__)
        if not file.startswith((*OURS, os.path.dirname(IPython.__file__) + os.sep))
    ]
    return ["Traceback (most recent call last):", *lines, f"{type(error).__name__}: {error}"]


def in_cells(text):
    """`text` with files of cells named as in the notebook's own tracebacks: "Cell In[3], line 6"."""
    ipython = sys.modules.get("IPython")
    named = getattr(getattr(ipython and ipython.get_ipython(), "compile", None), "format_code_name", lambda _: None)
    return re.sub(r'File "(.*?)"(?=, line \d)', lambda found: " ".join(named(found[1]) or (found[0],)), text)


class RankError(RuntimeError):
    """A rank failed; the other ranks were stopped, or interrupted where they persist (`helpers.ranks`).

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
    """The run did not end in time; `stacks` maps each rank to its stack trace."""

    def __init__(self, message, stacks):
        super().__init__(message)
        self.stacks = stacks


class OutOfMemory(MemoryError):
    """In a rank: it would have held more than `launch(…, memory=…)` allows it."""


class Shortage(RuntimeError):
    """The system gives no more of something; the message says what its limit is and what to do."""


class RankOutOfMemory(RankError, MemoryError):
    """A rank would have held more than `launch(…, memory=…)` allows it; the other ranks were stopped."""


class RunStopped(RuntimeError):
    """A run in the background was stopped before its end; it has no result."""


class LauncherError(RuntimeError):
    """The fork server could not be started or was lost: no rank is to blame."""


# What gloo, NCCL and the store say on a rank that waited for one which has died.
LOST_PEER = re.compile(
    "Connection (closed by peer|reset by peer|refused)|Broken pipe|Socket (closed|is not open)|recvValue failed|"
    "remote process exited or there was a network error|(sendBytes|recvBytes) failed|Failed to recv"
)


@dataclass
class Failure:
    """How one rank failed, as the supervisor saw it."""

    rank: int
    when: float  # time.time(), the clock that machines agree on
    text: str = ""  # traceback; empty when the rank could not report
    exception: BaseException | None = None
    exitcode: int | None = None
    why: str = ""  # what became of its machine or its job

    def __post_init__(self):
        self.text = in_cells(self.text)

    @property
    def secondary(self) -> bool:
        """Whether this rank only noticed that a peer was gone."""
        return bool(LOST_PEER.search(self.text))

    def describe(self) -> str:
        """What happened to the rank, in one sentence without its full stop."""
        if isinstance(self.exception, OutOfMemory):
            return f"rank {self.rank} is out of memory: {self.exception}"
        if isinstance(self.exception, Shortage):
            return f"rank {self.rank} failed: {self.exception}"
        if self.text:
            return f"rank {self.rank} failed"
        if self.why:
            return f"rank {self.rank} was lost: {self.why}"
        if self.exitcode is None or self.exitcode >= 0:
            return f"rank {self.rank} left with exit code {self.exitcode} before its function returned"
        number = -self.exitcode
        name = signal.Signals(number).name if number in set(signal.Signals) else number
        return f"rank {self.rank} was killed by signal {name}{HINTS.get(number, '')}"


HINTS = {
    signal.SIGKILL: ". Nothing in the program does that by itself: very often the system ran out of memory. "
    "Try a smaller batch or fewer ranks",
    signal.SIGSEGV: ". Its last stack is in the output above, if it could be written",
}


def in_short(error) -> str:
    """What went wrong in one line: which rank, and the last line of its traceback if it could send one."""
    lines = [line for line in getattr(error, "traceback", "").splitlines() if line.strip()]
    return f"rank {error.rank}: {lines[-1]}" if lines else str(error).partition("\n")[0]


def first_failure(failures):
    """The failure that caused the others: the earliest that is not a lost connection."""
    return min(failures, key=lambda failure: (failure.secondary, failure.when))


def rank_error(failures, finished, world_size, kept=False):
    """The RankError for a run with `failures`.

    Args:
        finished: ranks that had already returned.
        kept: whether the other ranks go on to live.
    """
    failure = first_failure(failures)
    message = failure.describe()
    if world_size > 1:
        others = "the others were interrupted, and all keep what they hold" if kept else "the other ranks were stopped"
        message += f"; {others}"
    message += "."
    if failure.text:
        message += f" Its traceback:\n\n{failure.text.rstrip()}"
    if failure.secondary and finished:
        message += (
            f"\n\nRank {failure.rank} was waiting for a peer that had gone: rank {_listed(finished)} had already "
            "returned. Every rank has to call the same collectives, the same number of times."
        )
    if also := [f.rank for f in failures if f is not failure and not f.secondary]:
        message += f"\n\nRank {_listed(also)} failed too, a moment later."
    kind = RankOutOfMemory if isinstance(failure.exception, OutOfMemory) else RankError
    return kind(message, failure.rank, failure.exception, failure.text, failure.exitcode)


def timeout_error(seconds, stacks, waiting, world_size, others="all ranks were stopped"):
    """The error for a run of `world_size` ranks of which `waiting` were not done in time."""
    return RankTimeout(
        f"no result after {seconds:g} s: rank {_listed(waiting)} of {world_size} had not returned; {others}. "
        f"Where they stood:\n\n{stacks_text(stacks, waiting)}",
        stacks,
    )


def stacks_text(stacks, ranks):
    """The stack trace of each of `ranks`, as text."""
    unknown = "    (gave no answer: it is stopped, or busy outside Python)"
    return "\n".join(f"rank {r}:\n{stacks.get(r) or unknown}" for r in ranks)


def _listed(ranks):
    return ", ".join(map(str, sorted(ranks)))

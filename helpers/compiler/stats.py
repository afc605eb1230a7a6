"""What torch.compile did in this process: graphs, breaks, recompilations, and the time it took.

It keeps these numbers anyway, spread over torch._dynamo.utils; this puts them into words.
(https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html)
"""

import linecache
import logging
import re
import time
from contextlib import contextmanager
from dataclasses import dataclass

from .. import releases

KEPT = 4096  # compilations that torch remembers; by default only 64

_since = {"time": 0.0, "graphs": 0, "last break": None}


@dataclass(frozen=True)
class Break:
    """A place where a graph ended before the function did."""

    reason: str
    file: str
    line: int
    code: str


@dataclass(frozen=True)
class Recompilation:
    """A function that was compiled again because something it had been compiled for changed."""

    function: str
    reason: str


@dataclass(frozen=True)
class Stats:
    """Counts since the process began, or since the last reset.

    Attributes:
        graphs: graphs that were captured and compiled.
        breaks: places where capture broke off, each once.
        recompilations: one for each time that compiled code did not fit.
        compile_s: seconds spent on compiling, forward and backward.
    """

    graphs: int
    breaks: list
    recompilations: list
    compile_s: float


def compiler_stats(reset=False) -> Stats:
    """What was compiled so far in this process, as Stats: graphs, breaks, recompilations, seconds (`compile_s`).

    With `reset` counting starts again afterwards. The numbers are torch._dynamo's own.
    """
    from torch._dynamo import utils

    remember()
    since = dict(_since)
    compilations = [m for m in utils.get_compilation_metrics() if (m.start_time_us or 0) / 1e6 >= since["time"]]
    reasons = list(utils.graph_break_reasons)
    seen = next((place for place, reason in enumerate(reasons, 1) if reason is since["last break"]), 0)
    graphs = utils.counters["stats"]["unique_graphs"]
    if reset:
        last = reasons[-1] if reasons else None
        _since.update({"time": time.time(), "graphs": graphs, "last break": last})
    again = [(m.co_name, why) for m in compilations if (why := releases.recompile_reason(m))]
    return Stats(
        graphs - since["graphs"],
        _places(reasons[seen:]),
        [Recompilation(name, " ".join(why.partition(": ")[2].split()) or why) for name, why in again],
        sum(m.entire_frame_compile_time_s or (m.duration_us or 0) / 1e6 for m in compilations),
    )


def remember() -> None:
    """Have torch remember enough compilations for a long run."""
    from torch._dynamo import utils

    utils.set_compilation_metrics_limit(KEPT)


def _places(reasons):
    """A Break for each line of code, with what was not understood and why, without hints for developers of torch."""
    found = {}
    for reason in reasons:
        frame = reason.user_stack[-1] if reason.user_stack else None
        file, line = (frame.filename, frame.lineno) if frame else ("?", 0)
        lines = [each.strip() for each in reason.reason.splitlines() if each.strip()] or ["unknown"]
        why = next((each.removeprefix("Explanation") for each in lines if each.startswith("Explanation: ")), "")
        words = f"{lines[0]}{why}"
        if reason.reason.startswith("generic_jump"):
            words = "a branch that depends on the values of a tensor"
        found.setdefault((file, line), Break(words, file, line, linecache.getline(file, line).strip()))
    return list(found.values())


@contextmanager
def torch_logs(*names):
    """Print in the block what TORCH_LOGS=names (such as "graph_breaks") would, a line a message and without paths."""
    import torch

    torch._logging.set_logs(**dict.fromkeys(names, True))
    known = [logging.getLogger(name) for name in list(logging.root.manager.loggerDict) if name.startswith("torch.")]
    loggers = [logger for logger in known if logger.name.rpartition("__")[2] in names]
    before = {logger: (logger.handlers[:], logger.propagate) for logger in loggers}
    for logger in loggers:
        logger.handlers[:], logger.propagate = [_Line()], False
    try:
        yield
    finally:
        for logger, (handlers, propagate) in before.items():
            logger.handlers[:], logger.propagate = handlers, propagate
        torch._logging.set_logs(all=logging.ERROR)


class _Line(logging.Handler):
    def emit(self, record):
        lines = [line.strip() for line in record.getMessage().splitlines() if line.strip()]
        why = next((line for line in lines if line.startswith(("Explanation: ", "Reason: "))), lines[-1])
        what = re.split(r" in (?:user code at )?\S*[/<]", lines[0])[0]
        print(f"[{record.name.rpartition('__')[2]}] {what}. {why}")

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

_since = {"time": 0.0, "graphs": 0, "hits": 0, "last break": None}


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
        cache_hits: graphs that came from inductor's cache on disk.
    """

    graphs: int
    breaks: list
    recompilations: list
    compile_s: float
    cache_hits: int

    def __str__(self):
        lines = [
            f"{self.graphs} graph(s), {len(self.breaks)} break(s), {len(self.recompilations)} recompilation(s), "
            f"{self.compile_s:.1f} s of compiling, {self.cache_hits} graph(s) from the cache"
        ]
        for place in self.breaks:
            lines.append(f"break at {place.file}:{place.line}: {place.code}\n    {place.reason}")
        lines += [f"recompiled {again.function}: {again.reason}" for again in self.recompilations]
        return "\n".join(lines)


def compiler_stats(reset=False) -> Stats:
    """What was compiled so far in this process; with `reset` counting starts again afterwards."""
    from torch._dynamo import utils

    remember()
    since = dict(_since)
    compilations = [m for m in utils.get_compilation_metrics() if (m.start_time_us or 0) / 1e6 >= since["time"]]
    reasons = list(utils.graph_break_reasons)
    seen = next((place for place, r in enumerate(reasons, 1) if r is since["last break"]), 0)
    graphs, hits = utils.counters["stats"]["unique_graphs"], utils.counters["inductor"]["fxgraph_cache_hit"]
    if reset:
        last = reasons[-1] if reasons else None
        _since.update({"time": time.time(), "graphs": graphs, "hits": hits, "last break": last})
    return Stats(
        graphs - since["graphs"],
        _places(reasons[seen:]),
        list(_again(compilations)),
        sum(_seconds(m) for m in compilations),
        hits - since["hits"],
    )


@contextmanager
def torch_logs(*names):
    """Print in the block what TORCH_LOGS=names (such as "graph_breaks") would, a line a message and without paths."""
    import torch

    torch._logging.set_logs(**dict.fromkeys(names, True))
    loggers = [
        logging.getLogger(name)
        for name in list(logging.root.manager.loggerDict)
        if name.startswith("torch.") and name.rpartition("__")[2] in names
    ]
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


def remember() -> None:
    """Have torch remember enough compilations for a long run."""
    from torch._dynamo import utils

    utils.set_compilation_metrics_limit(KEPT)


def _seconds(compilation):
    return compilation.entire_frame_compile_time_s or (compilation.duration_us or 0) / 1e6


def _again(compilations):
    for compilation in compilations:
        if why := releases.recompile_reason(compilation):
            yield Recompilation(compilation.co_name, " ".join(why.partition(": ")[2].split()) or why)


def _places(reasons):
    found = {}
    for reason in reasons:
        frame = reason.user_stack[-1] if reason.user_stack else None
        file, line = (frame.filename, frame.lineno) if frame else ("?", 0)
        found.setdefault((file, line), Break(_words(reason.reason), file, line, linecache.getline(file, line).strip()))
    return list(found.values())


def _words(reason):
    """What was not understood and why, without hints for developers of torch."""
    if reason.startswith("generic_jump"):
        return "a branch that depends on the values of a tensor"
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    why = next((line.removeprefix("Explanation: ") for line in lines if line.startswith("Explanation: ")), "")
    return f"{lines[0]}: {why}" if why else lines[0] if lines else "unknown"

"""Profile some steps of a function that trains, on each rank. Nothing that it computes changes.

Steps are counted by the global hooks of torch.optim, so the function needs no marks. Times are those of the machine's
clock, in ns, which the profiler and all ranks share.
"""

import json
import os
import tempfile
import threading
import time
from dataclasses import dataclass, field

from torch.optim import optimizer as hooks
from torch.profiler import profile, supported_activities

from ..config import RunConfig
from .kinds import BACKWARD

MARGIN = 1_000_000  # ns before the first step and after the last that are kept


class NoTraining(RuntimeError):
    """The function made too few steps of an optimizer for a timeline; `ranks` names who."""

    def __init__(self, message, ranks):
        super().__init__(message)
        self.ranks = ranks


def prepared(what, nprocs, args, kwargs, steps, threads, env):
    """(ranks, threads, env, function, arguments) of a function as it is, or of a RunConfig for so many steps."""
    env = {"KINETO_LOG_LEVEL": "99", **(env or {})}  # where the profiler finds no GPU it would say so in every cell
    if not isinstance(what, RunConfig):
        if not callable(what):
            raise TypeError(f"a function that trains or a RunConfig is needed, got {type(what).__name__}: {what!r}")
        return nprocs, threads, env, what, args
    if args or kwargs or nprocs not in (1, what.processes):
        raise TypeError(
            f"{what.label} is a RunConfig for {what.processes} rank(s) and has all settings; leave out other ranks and "
            "arguments, or change it with `.but(…)`"
        )
    from ..data import sets
    from ..training.loop import train

    if isinstance(what.data, str):
        sets.ensure(what.data)
    threads = threads or what.threads or what.check_machine().threads
    env = {**({"HELPERS_DEVICE": what.device} if what.device else {}), **env}
    return what.processes, threads, env, train, (what.but(steps=steps, epochs=None, evaluate=False),)


@dataclass
class Recording:
    """What one rank has recorded."""

    rank: int
    ends: list = field(default_factory=list)  # of the profiled steps, after the start of the first (ns)
    updates: int = 0  # optimizer steps that the function made
    main: int = 0  # the thread that trains
    device: str = "cpu"
    events: bytes = b""  # those of the profiler as JSON, compressed


class Recorder:
    """Runs the profiler from one call of an optimizer's step to another. `options` are those of the profiler."""

    options = {"record_shapes": True}

    def __init__(self, warm_up, steps):
        self.warm_up, self.steps = warm_up, steps
        self.recording = Recording(int(os.environ.get("RANK", 0)))
        self.counted, self.profiler, self.running = None, None, False

    def record(self, fn, args, kwargs):
        """Call `fn` and count its steps; (its answer, Recording, the profiler's events sorted by time)."""
        handles = [
            hooks.register_optimizer_step_pre_hook(self.before),
            hooks.register_optimizer_step_post_hook(self.after),
        ]
        try:
            if not self.warm_up:
                self.start()
            answer = fn(*args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()
            self.stop()
        enough = len(self.recording.ends) > self.steps
        return answer, self.recording, _events(self.profiler, self.recording.ends) if enough else []

    def before(self, optimizer, *_):
        if self.counted in (None, optimizer) and len(self.recording.ends) > self.steps:
            self.stop()  # here, as the last step's own event is still open when `after` is called

    def after(self, optimizer, *_):
        if self.counted is None:
            self.counted = optimizer
            self.recording.device = next(p.device.type for group in optimizer.param_groups for p in group["params"])
        if optimizer is not self.counted:  # of several optimizers the first one ends a step
            return
        self.recording.updates += 1
        if self.running:
            self.recording.ends.append(time.time_ns())
        elif self.profiler is None and self.recording.updates == self.warm_up:
            self.start()

    def start(self):
        self.profiler = profile(activities=supported_activities(), **self.options)
        self.profiler.start()
        self.running, self.recording.main = True, threading.get_native_id()
        self.recording.ends.append(time.time_ns())

    def stop(self):
        if self.running:
            self.running = False
            self.profiler.stop()


def _events(profiler, ends):
    """The profiler's events of the steps, with ts and dur in ns."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)
        with open(path, encoding="utf-8", errors="replace") as file:
            trace = json.load(file, strict=False)
    base, kept = trace.get("baseTimeNanoseconds", 0), []
    for event in trace["traceEvents"]:
        if event["ph"] == "M" and event["name"] == "thread_name":
            kept.append({"ts": 0, **event})
        elif event["ph"] in "Xsfi" and event.get("cat", "Trace") != "Trace":
            event.update(ts=base + round(1e3 * event["ts"]), dur=round(1e3 * event.get("dur", 0)))
            if ends[0] - MARGIN < event["ts"] < ends[-1] + MARGIN:
                kept.append(event)
    return sorted(kept, key=lambda event: event["ts"])


def check_recorded(recorded, steps, warm_up):
    """Refuse (Recording, kinds of its spans) of ranks that made too few steps, or no backward. Raises NoTraining."""
    short = [each.rank for each, _kinds in recorded if len(each.ends) <= steps]
    if short:
        made = ", ".join(f"rank {each.rank}: {each.updates}" for each, _kinds in recorded)
        raise NoTraining(
            f"{steps} step(s) after {warm_up} to warm up need {warm_up + steps} calls of optimizer.step() on every "
            f"rank; there were fewer ({made}). Train for more steps, or ask for fewer.",
            short,
        )
    short = [each.rank for each, kinds in recorded if BACKWARD not in kinds]
    if short:
        raise NoTraining(f"rank {', '.join(map(str, short))} called optimizer.step(), but never backward()", short)

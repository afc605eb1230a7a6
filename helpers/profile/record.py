"""In a rank: profile some steps of a function that trains. Nothing that it computes changes.

Steps are counted by the global hooks of torch.optim, so the function needs no marks. The clock of the profiler is
set against the monotonic clock, which all processes of a machine share: before and after the profiled steps, by
labels that carry the time at which they were made.
"""

import gzip
import json
import os
import tempfile
import time
from dataclasses import dataclass, field

from torch.optim import optimizer as hooks
from torch.profiler import profile, record_function, supported_activities

CLOCK = "helpers clock "  # a label, followed by time.monotonic_ns()
MARGIN = 1_000_000  # ns before the first step and after the last that are kept
MARKS = 20  # labels each time: the quickest of them counts


@dataclass
class Recording:
    """What one rank has recorded.

    Attributes:
        ends: when each profiled step ended; the first is the start of the first step (ns, monotonic).
        updates: optimizer steps that the function made.
        events: those of the profiler as JSON, compressed, with ts in ns of the monotonic clock; b"" if none.
        main: the thread that trains.
        clock_error: how far the two settings of the clock differ (ns).
        note: what had to be left out.
    """

    ends: list = field(default_factory=list)
    updates: int = 0
    events: bytes = b""
    main: int = 0
    clock_error: int = 0
    note: str = ""
    size: int = 0  # bytes of the whole trace
    device: str = "cpu"
    rank: int = 0


def record(fn, args, kwargs, recorder):
    """Call `fn` while `recorder` counts its steps; (its answer, Recording, the profiler's events sorted by time)."""
    handles = [
        hooks.register_optimizer_step_pre_hook(recorder.before),
        hooks.register_optimizer_step_post_hook(recorder.after),
    ]
    try:
        if not recorder.warm_up:
            recorder.start()
        answer = fn(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
        recorder.stop()
    recording = recorder.recording
    recording.rank = int(os.environ.get("RANK", 0))
    return answer, recording, _read(recorder.profiler, recording) if len(recording.ends) > recorder.steps else []


class Recorder:
    """Runs the profiler from one call of an optimizer's step to another. `options` are those of the profiler."""

    options = {"record_shapes": True}

    def __init__(self, warm_up, steps):
        self.warm_up, self.steps = warm_up, steps
        self.recording, self.counted, self.profiler, self.running = Recording(), None, None, False

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
            self.recording.ends.append(time.monotonic_ns())
        elif self.profiler is None and self.recording.updates == self.warm_up:
            self.start()

    def start(self):
        self.profiler = profile(activities=supported_activities(), **self.options)
        self.profiler.start()
        self.running = True
        _mark()
        self.recording.ends.append(time.monotonic_ns())

    def stop(self):
        if self.running:
            self.running = False
            _mark()
            self.profiler.stop()


def _mark():
    for _ in range(MARKS):
        with record_function(f"{CLOCK}{time.monotonic_ns()}"):
            pass


def _read(profiler, recording):
    """The profiler's events, with ts and dur in ns of the monotonic clock."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)
        recording.size = os.path.getsize(path)
        with open(path, encoding="utf-8", errors="replace") as file:
            events = json.load(file, strict=False)["traceEvents"]
    marks = [event for event in events if event["name"].startswith(CLOCK) and event["ph"] == "X"]
    early, late = (
        min(round(1e3 * mark["ts"]) - int(mark["name"][len(CLOCK) :]) for mark in some)
        for some in (marks[:MARKS], marks[-MARKS:])
    )
    recording.main, recording.clock_error = marks[0]["tid"], abs(late - early)
    first, last = recording.ends[0], recording.ends[-1]
    kept = [{"ts": 0, **event} for event in events if event["ph"] == "M" and event["name"] == "thread_name"]
    for event in events:
        if event["ph"] in "Xsfi" and event.get("cat", "Trace") != "Trace" and not event["name"].startswith(CLOCK):
            event.update(ts=round(1e3 * event["ts"]) - early, dur=round(1e3 * event.get("dur", 0)))
            if first - MARGIN < event["ts"] < last + MARGIN:
                kept.append(event)
    return sorted(kept, key=lambda event: event["ts"])


def keep(recording, events, most_bytes):
    """Put the events into the recording, compressed; no more of them than `most_bytes` of JSON."""
    if recording.size > most_bytes:
        whole = len(events)
        events = events[: max(1, whole * most_bytes // recording.size)]
        recording.note = (
            f"the trace of rank {recording.rank} had {recording.size / 1e6:.1f} MB; the first {len(events):,} of "
            f"{whole:,} events were kept"
        )
    recording.events = gzip.compress(json.dumps(events).encode(), 1)

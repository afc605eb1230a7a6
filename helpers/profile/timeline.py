"""`timeline(train, 2)`: what each rank does inside a training step, and how much of its communication is hidden."""

import gzip
import json
from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from statistics import median

import torch

from .. import device, measure, paths
from ..language import _
from ..launcher.launch import launch
from .kinds import COMMUNICATION, PHASES, WAIT
from .record import Recorder, check_recorded, prepared
from .spans import SHORT_WAIT, Span, common, length, spans_of


def timeline(what, nprocs=1, *args, steps=6, warm_up=3, hosts=None, timeout=None, threads=None, env=None, **kwargs):
    """Train, profile `steps` steps on every rank, and return the `Timeline`.

    The function needs no marks and may be defined in a cell: it joins the group, makes its model and calls
    `optimizer.step()` at least `warm_up + steps` times on every rank. A step is what lies between the ends of two
    calls. What is trained is the same as without the profiler, but each step takes longer.

    Args:
        what: a function, called as `launch(what, nprocs, *args, **kwargs)` does, or a RunConfig, whose ranks, threads
            and model are used for as many steps as are needed.
        steps: profiled, at least 5. warm_up: steps before them.
        hosts: those of `helpers.cluster.twohosts.two_hosts(rate=…)`, to train over their link.

    Returns:
        A Timeline of torch.profiler's events, in seconds: `figure()` draws it, `overlap()` is the share of the
        communication that is hidden behind computation.

    Raises:
        TypeError, ValueError: bad arguments; no rank was started.
        NoTraining: a rank made too few steps of an optimizer; it names the rank.
        RankError: a rank failed, as with `launch`.
    """
    if steps < measure.AT_LEAST:
        raise ValueError(f"{steps} step(s): at least {measure.AT_LEAST} are needed for a median and its spread")
    nprocs, threads, env, what, args = prepared(what, nprocs, args, kwargs, warm_up + steps, threads, env)
    if hosts and nprocs % 2:
        raise ValueError(f"{nprocs} ranks cannot be divided between two hosts; give an even number")
    call, options = (what, args, kwargs, warm_up, steps), {"timeout": timeout, "env": env}
    if hosts:
        answers = hosts.run(record_timeline, *call, per_host=nprocs // 2, threads=threads or 1, **options)
        where = f"{hosts.describe()}; {device.machine('cpu').name}"
    else:
        answers, where = launch(record_timeline, nprocs, *call, threads=threads, **options), device.machine().describe()
    check_recorded(
        [(recording, {span.kind for span in found}) for _answer, recording, found in answers], steps, warm_up
    )
    return _timeline(answers, steps, where)


def record_timeline(what, args, kwargs, warm_up, steps):
    """On a rank: (what the function returned, Recording, its Spans)."""
    answer, recording, events = Recorder(warm_up, steps).record(what, args, kwargs)
    recording.events = gzip.compress(json.dumps(events).encode(), 1)
    return answer, recording, spans_of(events, recording)


@dataclass
class Timeline:
    """Some steps of every rank.

    Attributes:
        spans: what each rank did when (s, from the first step's start), as `Span`.
        ends: for each rank, the start of the first step and the ends of all (s).
        conditions: on what, with which torch, on which day.
        answers: what the function returned on each rank.
    """

    ranks: int
    spans: list
    ends: list
    conditions: str = ""
    answers: list = field(default_factory=list, repr=False)
    recordings: list = field(default_factory=list, repr=False)

    @property
    def steps(self) -> int:
        """How many steps were profiled."""
        return len(self.ends[0]) - 1

    def overlap(self) -> dict:
        """The share of the communication that is hidden, of all ranks: `measure.with_interval` over the steps.

        Communication is exposed while the rank's training thread waits for it and computes nothing (on a GPU: while
        no other kernel runs), and hidden otherwise. None if there is no communication.
        """
        shares = self.hidden_shares()
        return measure.with_interval(shares) if len(shares) >= measure.AT_LEAST else None

    def hidden_shares(self) -> list:
        """The share of the communication that is hidden in each step that has any."""
        shares = []
        for step in range(self.steps):
            hidden = whole = 0.0
            for rank in range(self.ranks):
                mine = [span for span in self.spans if span.rank == rank and abs(span.step - step) <= 1]
                sent = _pairs(span for span in mine if span.kind == COMMUNICATION and span.step == step)
                streams = _pairs(span for span in mine if span.row.startswith("stream"))
                waits = _pairs(span for span in mine if span.kind == WAIT)
                whole += length(sent)
                hidden += common(sent, streams) if streams else length(sent) - common(sent, waits)
            shares += [max(hidden, 0.0) / whole] if whole else []
        return shares

    def rows(self) -> list:
        """A dict for each rank: medians over the steps, in ms."""
        rows = []
        for rank in range(self.ranks):
            parts = defaultdict(list)
            for step in range(self.steps):
                mine = [span for span in self.spans if span.rank == rank and span.step == step]
                parts["step"].append(self.ends[rank][step + 1] - self.ends[rank][step])
                for kind, name in zip((*PHASES, COMMUNICATION, WAIT), (*PHASES, COMMUNICATION, "waits"), strict=True):
                    parts[name].append(length(_pairs(span for span in mine if span.kind == kind)))
            medians = {f"{name} (ms)": 1e3 * median(values) for name, values in parts.items()}
            rows.append({"rank": rank, **medians})
        return rows

    def collectives(self) -> list:
        """A dict for each collective of a step: name, bytes, and ms (median over ranks and steps)."""
        groups = defaultdict(list)
        for span in self.spans:
            if span.kind == COMMUNICATION:
                groups[span.name, span.number, span.bytes].append(1e3 * (span.end - span.start))
        return [
            {"collective": f"{name} {number}", "bytes": size, "ms": median(times)}
            for (name, number, size), times in sorted(groups.items())
        ]

    def figure(self, step=None, title=None):
        """(figure, alt) of one step of all ranks, by default the one of median length; for `plots.show(*…)`."""
        from .figure import draw_step

        lengths = [end - start for start, end in zip(self.ends[0], self.ends[0][1:], strict=False)]
        typical = sorted(range(self.steps), key=lengths.__getitem__)[(self.steps - 1) // 2]
        return draw_step(self, typical if step is None else step, title)

    def write_trace(self, path) -> str:
        """Write the profilers' whole traces as one file for https://ui.perfetto.dev; says what was written.

        The ranks are its processes.

        Raises:
            ValueError: this timeline was loaded from a file, which holds no trace.
        """
        if not self.recordings:
            raise ValueError("this timeline was read from a file, which has no events of the profiler; record it anew")
        events, zero = [], min(recording.ends[0] for recording in self.recordings)
        for recording in self.recordings:
            name = {"name": f"rank {recording.rank}"}
            events.append({"ph": "M", "name": "process_name", "pid": recording.rank, "tid": 0, "args": name})
            for event in json.loads(gzip.decompress(recording.events)):
                if event["ph"] != "M":
                    event.update(ts=(event["ts"] - zero) / 1e3, dur=event["dur"] / 1e3)
                events.append({**event, "pid": recording.rank})
        about = {"displayTimeUnit": "ms", "otherData": {"conditions": self.conditions}}
        text = json.dumps({"traceEvents": events, **about}, separators=(",", ":"))
        paths.replace_file(Path(path), text)
        return f"{Path(path).name}: {len(events):,} events of {self.ranks} rank(s), {len(text) / 1e6:.1f} MB"

    def save(self, path):
        """Write what is needed to draw this again (`load`), without the trace."""
        kept = {"date": date.today().isoformat(), "conditions": self.conditions, "ranks": self.ranks}
        text = json.dumps({**kept, "ends": self.ends, "spans": [vars(span) for span in self.spans]})
        rounded = json.loads(text, parse_float=lambda digits: round(float(digits), 6))
        paths.replace_file(Path(path), json.dumps(rounded, separators=(",", ":")) + "\n")


def _pairs(spans):
    return [(span.start, span.end) for span in spans]


def load(path) -> Timeline:
    """A Timeline that `save` wrote; `conditions` names its machine and its day."""
    kept = json.loads(Path(path).read_text(encoding="utf-8"))
    conditions = _("recorded {date}: {conditions}").format(date=kept["date"], conditions=kept["conditions"])
    return Timeline(kept["ranks"], [Span(**span) for span in kept["spans"]], kept["ends"], conditions)


def _timeline(answers, steps, where):
    recordings = [recording for _answer, recording, _found in answers]
    zero = min(each.ends[0] for each in recordings)
    found = [span for *_rest, some in answers for span in some]
    for span in found:
        span.start, span.end = 1e-9 * (span.start - zero), 1e-9 * (span.end - zero)
    return Timeline(
        len(answers),
        _by_cause(found),
        [[1e-9 * (end - zero) for end in each.ends[: steps + 1]] for each in recordings],
        f"torch {torch.__version__}, {where}",
        [answer for answer, *_rest in answers],
        recordings,
    )


def _by_cause(found):
    """The spans, each wait divided: for the last rank that came to the collective, and for the link after that."""
    last = {}
    for span in found:
        if span.kind == COMMUNICATION and span.name not in ("send", "recv"):  # two ranks' first ones need not belong
            key = (span.step, span.name, span.number)
            last[key] = max(last.get(key, (0, 0)), (span.start, span.rank))
    spans = []
    for span in found:
        if span.kind != WAIT:
            spans.append(span)
            continue
        came, who = last.get((span.step, span.name, span.number), (0, span.rank))
        middle = span.start
        if who != span.rank and came - span.start > 1e-9 * SHORT_WAIT:
            middle = min(came, span.end)
            spans.append(replace(span, name=f"rank {who}", end=middle))
        if span.end > middle:
            spans.append(replace(span, name=f"{span.name} {span.number}", start=middle))
    return spans

"""`timeline(train, 2)`: what each rank does inside a training step, and how much of its communication is hidden."""

import json
import os
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from datetime import date
from numbers import Integral
from pathlib import Path
from statistics import median

from .. import device, measure, paths
from ..config import RunConfig
from ..launcher.language import marked
from ..launcher.launch import launch
from .spans import BACKWARD, COMMUNICATION, PHASES, SHORT_WAIT, WAIT, Span, common, length

LARGEST = 50_000_000  # bytes of a trace; what goes beyond is cut


class NoTraining(RuntimeError):
    """The function made too few steps of an optimizer for a timeline; `ranks` names who."""

    def __init__(self, message, ranks):
        super().__init__(message)
        self.ranks = ranks


def timeline(what, nprocs=1, *args, steps=6, warm_up=3, hosts=None, timeout=None, threads=None, env=None, **kwargs):
    """Train, profile `steps` steps on every rank, and return the `Timeline`.

    The function needs no marks and may be defined in a cell: it joins the group, makes its model and calls
    `optimizer.step()` at least `warm_up + steps` times on every rank. A step is what lies between the ends of two
    calls. What is trained is the same as without the profiler, but each step takes longer.

    The ranks' times are those of one clock, the machine's monotonic one; `Timeline.clock_error_s` says how exactly
    the profilers' clocks could be set to it.

    Args:
        what: a function, called as `launch(what, nprocs, *args, **kwargs)` does, or a RunConfig, whose ranks, threads
            and model are used for as many steps as are needed.
        steps: profiled, at least 5. warm_up: steps before them.
        hosts: those of `helpers.cluster.twohosts.two_hosts(rate=…)`, to train over their cable.

    Raises:
        TypeError, ValueError: bad arguments; no rank was started.
        NoTraining: a rank made too few steps of an optimizer; it names the rank.
        RankError: a rank failed, as with `launch`.
    """
    if counted("steps", steps) < measure.AT_LEAST:
        raise ValueError(f"{steps} step(s): at least {measure.AT_LEAST} are needed for a median and its spread")
    if not hasattr(hosts, "run") and hosts is not None:
        raise TypeError(f"hosts is {hosts!r}; give those of `with twohosts.two_hosts(rate=50) as hosts:`")
    made = counted("warm_up", warm_up) + steps
    nprocs, threads, env, what, args = of_what(what, nprocs, args, kwargs, made, threads, env)
    options = {"timeout": timeout, "threads": threads, "env": env}
    call = (what, args, kwargs, warm_up, steps, LARGEST)
    if hosts is None:
        answers = launch(record_timeline, nprocs, *call, **options)
    else:
        if nprocs % 2:
            raise ValueError(f"{nprocs} ranks cannot be divided between two hosts; give an even number")
        answers = hosts.run(record_timeline, *call, per_host=nprocs // 2, **{**options, "threads": threads or 1})
    recordings = [recording for _, recording, _ in answers]
    checked(recordings, steps, warm_up)
    differentiated([(recording.rank, {span.kind for span in found}) for _, recording, found in answers])
    return _timeline(answers, steps, device.machine().describe() if hosts is None else _link(hosts))


def counted(name, value):
    """`value`, a number of steps. Raises TypeError, ValueError."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} is {value!r}; give a whole number of steps")
    if value < 0:
        raise ValueError(f"{name} is {value}; give 0 or more steps")
    return int(value)


def of_what(what, nprocs, args, kwargs, steps, threads, env):
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


def checked(recordings, steps, warm_up):
    """Refuse recordings of too few steps. Raises NoTraining."""
    short = [each.rank for each in recordings if len(each.ends) <= steps]
    if short:
        made = ", ".join(f"rank {each.rank}: {each.updates}" for each in recordings)
        raise NoTraining(
            f"{steps} step(s) after {warm_up} to warm up need {warm_up + steps} calls of optimizer.step() on every "
            f"rank; there were fewer ({made}). Train for more steps, or ask for fewer.",
            short,
        )


def differentiated(kinds):
    """Refuse ranks, (number, kinds of their spans) each, that have no backward. Raises NoTraining."""
    short = [rank for rank, of_rank in kinds if BACKWARD not in of_rank]
    if short:
        raise NoTraining(f"rank {', '.join(map(str, short))} called optimizer.step(), but never backward()", short)


def _link(hosts):
    rate = f"{hosts.rate} Mbit/s" if hosts.rate else marked("any rate")
    return marked(f"2 network namespaces, a cable of {rate} ({hosts.by}); {device.machine('cpu').name}")


def record_timeline(what, args, kwargs, warm_up, steps, most):
    from . import record
    from .spans import spans

    answer, recording, events = record.record(what, args, kwargs, record.Recorder(warm_up, steps))
    found = spans(events, recording) if events else []
    record.keep(recording, events, most // int(os.environ["WORLD_SIZE"]))
    return answer, recording, found


@dataclass
class Timeline:
    """Some steps of every rank.

    Attributes:
        spans: what each rank did when (s, from the first step's start), as `Span`.
        ends: for each rank, the start of the first step and the ends of all (s).
        answers: what the function returned on each rank.
        clock_error_s: how far the profilers' clocks moved against the machine's while they recorded, at most.
        conditions: on what, with which torch, on which day.
        notes: what had to be left out.
    """

    ranks: int
    spans: list
    ends: list
    clock_error_s: float = 0.0
    conditions: str = ""
    notes: list = field(default_factory=list)
    answers: list = field(default_factory=list, repr=False)
    recordings: list = field(default_factory=list, repr=False)

    @property
    def steps(self) -> int:
        """How many steps were profiled."""
        return len(self.ends[0]) - 1

    def overlap(self) -> dict:
        """The share of the communication that is hidden: median, q1, q3, … over the steps, all ranks together.

        Communication is exposed while the rank's training thread waits for it and computes nothing (on a GPU: while
        no other kernel runs), and hidden otherwise. None if there is no communication.
        """
        shares = [self._hidden(step, range(self.ranks)) for step in range(self.steps)]
        shares = [hidden / whole for hidden, whole in shares if whole]
        return measure.summary(shares) if len(shares) >= measure.AT_LEAST else None

    def _hidden(self, step, ranks, collective=None):
        """(hidden, all) seconds of communication in a step, of all collectives or of one."""
        hidden = whole = 0.0
        for rank in ranks:
            mine = [span for span in self.spans if span.rank == rank and span.step in (step - 1, step, step + 1)]
            sent = [
                (span.start, span.end)
                for span in mine
                if span.kind == COMMUNICATION and span.step == step and collective in (None, (span.name, span.number))
            ]
            streams = [(span.start, span.end) for span in mine if span.row.startswith("stream")]
            waits = [(span.start, span.end) for span in mine if span.kind == WAIT]
            whole += length(sent)
            hidden += common(sent, streams) if streams else length(sent) - common(sent, waits)
        return hidden, whole

    def rows(self) -> list:
        """A dict for each rank: medians over the steps, in ms, and the share of communication that is hidden."""
        rows = []
        for rank in range(self.ranks):
            parts, shares = defaultdict(list), []
            for step in range(self.steps):
                mine = [span for span in self.spans if span.rank == rank and span.step == step]
                parts["step"].append(self.ends[rank][step + 1] - self.ends[rank][step])
                for kind in (*PHASES, COMMUNICATION):
                    parts[kind].append(length([(s.start, s.end) for s in mine if s.kind == kind]))
                for what in ("for a rank", "for the link"):
                    waits = [s for s in mine if s.kind == WAIT and s.name.startswith("rank") == (what == "for a rank")]
                    parts[f"waits {what}"].append(length([(s.start, s.end) for s in waits]))
                hidden, whole = self._hidden(step, [rank])
                if whole:
                    shares.append(hidden / whole)
            medians = {f"{name} (ms)": 1e3 * median(values) for name, values in parts.items()}
            rows.append({"rank": rank, **medians, "hidden": median(shares) if shares else None})
        return rows

    def collectives(self) -> list:
        """A dict for each collective of a step: name, bytes, ms (median over ranks and steps), hidden share."""
        groups = defaultdict(list)
        for span in self.spans:
            if span.kind == COMMUNICATION:
                groups[span.name, span.number, span.bytes].append(span)
        rows, names = [], [name for name, *_ in groups]
        for name, number, size in sorted(groups, key=lambda key: (names.index(key[0]), key[1])):
            some = groups[name, number, size]
            steps = sorted({span.step for span in some})
            pairs = [self._hidden(step, range(self.ranks), (name, number)) for step in steps]
            rows.append(
                {
                    "collective": f"{name} {number}",
                    "bytes": size,
                    "ms": 1e3 * median(span.length for span in some),
                    "hidden": median(hidden / whole for hidden, whole in pairs if whole),
                    "steps": len(pairs),
                }
            )
        return rows

    def table(self):
        """`rows` as a pandas DataFrame of texts."""
        return frame(self.rows())

    def figure(self, step=None, title=None):
        """(figure, alt) of one step of all ranks, by default the one of median length; for `plots.show(*…)`."""
        from .figure import draw

        return draw(self, self.typical() if step is None else step, title)

    def typical(self) -> int:
        """The number of the step of median length."""
        lengths = [self.ends[0][step + 1] - self.ends[0][step] for step in range(self.steps)]
        return sorted(range(self.steps), key=lambda step: lengths[step])[(self.steps - 1) // 2]

    def write_trace(self, path) -> str:
        """Write the profilers' whole traces as one file for https://ui.perfetto.dev; says what was written.

        The ranks are its processes. A trace above 50 MB is cut, with a note in the file and in the text.
        """
        from .trace import write

        return write(self, Path(path))

    def save(self, path):
        """Write what is needed to draw this again (`load`), without the trace."""
        kept = {
            "date": date.today().isoformat(),
            "conditions": self.conditions,
            "ranks": self.ranks,
            "ends": self.ends,
            "clock_error_s": self.clock_error_s,
            "notes": self.notes,
            "spans": [{k: v for k, v in asdict(span).items() if k != "collective"} for span in self.spans],
        }
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        paths.replace_file(path, json.dumps(_rounded(kept), separators=(",", ":")) + "\n")


def load(path) -> Timeline:
    """A Timeline that `save` wrote; `conditions` names its machine and its day.

    Raises:
        ValueError: the file holds something else.
    """
    text = Path(path).read_text(encoding="utf-8")
    try:
        kept = json.loads(text)
        return Timeline(
            kept["ranks"],
            [Span(**span) for span in kept["spans"]],
            kept["ends"],
            kept["clock_error_s"],
            marked(f"recorded {kept['date']}: {kept['conditions']}"),
            kept["notes"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no timeline, or a part of one: write it anew with `Timeline.save`") from error


def _rounded(value):
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


def frame(rows):
    """Dicts of numbers as a pandas DataFrame of texts."""
    import pandas

    from ..plots import number, percent

    def text(key, value):
        if key in ("hidden", "share"):
            return percent(value)
        return number(value) if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value

    return pandas.DataFrame([{key: text(key, value) for key, value in row.items()} for row in rows])


def _timeline(answers, steps, where):
    import torch

    recordings = [recording for _, recording, _ in answers]
    zero = min(each.ends[0] for each in recordings)
    found = [span for *_, some in answers for span in some]
    for span in found:
        span.start, span.end = 1e-9 * (span.start - zero), 1e-9 * (span.end - zero)
    ends = [[1e-9 * (end - zero) for end in each.ends[: steps + 1]] for each in recordings]
    notes = [each.note for each in recordings if each.note]
    return Timeline(
        len(answers),
        _reasons(found),
        ends,
        1e-9 * max(each.clock_error for each in recordings),
        marked(f"torch {torch.__version__}, {where}"),
        notes,
        [answer for answer, *_ in answers],
        recordings,
    )


def _reasons(found):
    """The spans, each wait divided: for the last rank that came to the collective, and for the link after that."""
    last = {}
    for span in found:
        if span.kind == COMMUNICATION and span.name not in ("send", "recv"):  # two ranks' first ones need not belong
            key = (span.step, span.name, span.number)
            last[key] = max(last.get(key, (0, 0)), (span.start, span.rank))
    spans = []
    for span in found:
        came, who = last.get((span.step, span.name, span.number), (0, 0))
        if span.kind != WAIT:
            spans.append(span)
            continue
        name = f"{span.name} {span.number}"
        if who != span.rank and came - span.start > 1e-9 * SHORT_WAIT:
            middle = min(came, span.end)
            spans.append(Span(span.rank, "main", WAIT, f"rank {who}", span.start, middle, span.step, 0, span.number))
            if span.end > middle:
                spans.append(Span(span.rank, "main", WAIT, name, middle, span.end, span.step, 0, span.number))
        else:
            spans.append(Span(span.rank, "main", WAIT, name, span.start, span.end, span.step, 0, span.number))
    return spans

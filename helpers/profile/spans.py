"""From the profiler's events of one rank to what it did when: the spans of its steps.

The training function has no marks; its phases are found by the names that PyTorch gives:
- backward: `autograd::engine::evaluate_function`, and what DDP's reducer does after the last of them;
- forward: from the first operator whose sequence number a node of that backward carries, to its begin;
- optimizer: `Optimizer.step#…`; input: `enumerate(DataLoader)#…`, or the operators between that and forward;
- gradients: what is done to them between backward and optimizer, such as averaging, unscaling or clipping;
- communication: `gloo:…`, or the kernels of NCCL, each with its bytes; a collective queued inside backward is a bucket;
- wait: while a collective is on its way the training thread runs no operator, and goes on when that has ended.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, replace
from math import prod

from .kinds import BACKWARD, COMMUNICATION, FORWARD, GRADIENTS, INPUT, OPTIMIZER, WAIT

NODE, REDUCER = "autograd::engine::evaluate_function", "torch.distributed.ddp.reducer::"
STEP, LOADER, DDP = "Optimizer.step#", "enumerate(DataLoader)", "DistributedDataParallel.forward"
FRAMES = ("autograd::", "torch::autograd", "c10d::", "torch::distributed", "torch.distributed")  # they may wait
SIZES = {  # bytes of a number, by the profiler's names
    1: ("unsigned char", "signed char", "char", "bool", "byte"),
    2: ("half", "bfloat16", "c10::half", "c10::bfloat16", "short"),
    4: ("float", "int", "tensorlist"),
    8: ("double", "long", "long int"),
}
SHORT_WAIT, JOINED = 50_000, 200_000  # ns: a shorter gap is Python's; operators closer together are one span
LATE = 3_000_000  # ns that gloo's thread may note the end of a message after the training thread goes on; 1.8 ms seen


@dataclass
class Span:
    """Something that a rank did from `start` to `end` (ns, later s); `number` counts collectives of a name."""

    rank: int
    row: str
    kind: str
    name: str
    start: float
    end: float
    step: int = -1
    bytes: int = 0
    number: int = -1
    collective: "Span | None" = None  # that a wait is for


def spans_of(events, recording):
    """The Spans of one rank's steps, with times in ns."""
    done = [{**event, "end": event["ts"] + event["dur"]} for event in events if event.get("ph") == "X"]
    main = [event for event in done if event["tid"] == recording.main]
    rank, passes, found = recording.rank, _passes(done, main), []
    for forward, begin, end in passes:
        found.append(Span(rank, "backward", BACKWARD, "backward", begin, end))
        if forward is not None:
            found.append(Span(rank, "main", FORWARD, "forward", forward, begin))
    for event in _outermost(event for event in done if event["name"].startswith(STEP)):
        found.append(Span(rank, "main", OPTIMIZER, event["name"][len(STEP) :], event["ts"], event["end"]))
    found += _between(done, main, found, recording)
    collectives = _collectives(done, passes, rank)
    waits = _waits(main, collectives, rank) if recording.device == "cpu" else []
    pieces = [piece for span in _in_steps(found, recording.ends) for piece in _without(span, waits)]
    rest = _in_steps(waits + collectives + _kernels(done, passes, rank), recording.ends)
    return sorted(pieces + rest, key=lambda span: span.start)


def _outermost(events):
    """Top-level events of each thread, in order."""
    until = defaultdict(int)
    for event in sorted(events, key=lambda event: (event["ts"], -event["end"])):
        if event["end"] > until[event["tid"]]:
            until[event["tid"]] = event["end"]
            yield event


def _passes(events, main):
    """(begin of its forward or None, begin, end) of each backward pass."""
    made = {}  # by sequence number: when the operator that made a node of the graph began, the last with its number
    for event in main:
        about = event.get("args", {})
        if event["cat"] == "cpu_op" and "Sequence number" in about and not about.get("Fwd thread id"):
            made[about["Sequence number"]] = event["ts"]
    nodes = list(_outermost(event for event in events if event["name"].startswith((NODE, REDUCER))))
    links = [made.get(node.get("args", {}).get("Sequence number")) for node in nodes]
    known, passes = sorted(link for link in links if link is not None), []
    for node, link in zip(nodes, links, strict=True):
        if not passes or bisect_left(known, node["ts"]) > bisect_right(known, passes[-1][1]):  # forward lies between
            passes.append([node["ts"], node["end"], []])
        passes[-1][1] = max(passes[-1][1], node["end"])
        passes[-1][2] += [link] if link is not None else []
    found, since = [], 0
    for begin, end, own in passes:
        if own:
            first = min((link for link in own if link > since), default=None)
            around = [  # operators that the first one is a part of, and DDP's own forward
                event["ts"]
                for event in main
                if first is not None and since <= event["ts"] <= first < event["end"]
                if event["cat"] == "cpu_op" or event["name"] == DDP
            ]
            found.append((min(around, default=first), begin, end))
        since = end
    return found


def _between(events, main, found, recording):
    """Spans of what is done before forward (input) and between backward and optimizer (gradients)."""
    phases = sorted((span.start, span.end, span.kind) for span in found)
    pairs = defaultdict(list)
    for event in _outermost(event for event in main if _is_work(event)):
        place = bisect_right(phases, (event["ts"], float("inf")))
        _start, end, before = phases[place - 1] if place else (0, 0, OPTIMIZER)
        after = phases[place][2] if place < len(phases) else None
        kind = {(OPTIMIZER, FORWARD): INPUT, (BACKWARD, OPTIMIZER): GRADIENTS}.get((before, after))
        if kind and event["ts"] >= max(end, recording.ends[0]):
            pairs[kind].append((event["ts"], event["end"]))
    loader = [event for event in events if event["name"].startswith(LOADER) or event["name"] == INPUT]
    if loader:
        pairs[INPUT] = [(event["ts"], event["end"]) for event in _outermost(loader)]
    return [
        Span(recording.rank, "input" if kind == INPUT else "main", kind, kind, *pair)
        for kind, some in pairs.items()
        for pair in _joined(some, JOINED)
    ]


def _is_work(event):
    name = event["name"]
    return event["cat"] == "cpu_op" and "::" in name and not name.startswith(FRAMES) or "Compiled" in name


def _collectives(events, passes, rank):
    """Each collective with its bytes, in the order in which they were queued: gloo's threads may begin in another."""
    launched, queued, found = _launches(events), defaultdict(list), []
    for event in events:
        if event["name"].startswith("c10d::"):
            queued[_plain(event["name"])].append(event)
    for event in sorted(events, key=lambda event: event["ts"]):
        about = event.get("args", {})
        if event["cat"] == "kernel" and "nccl" in event["name"].lower():
            kind = str(about.get("Collective name", "nccl"))
            size = about.get("In msg nelems", 0) * _size(about.get("dtype", "float"))
            when = launched.get(about.get("correlation"), event["ts"])
        elif event["name"].startswith("gloo:") and event["cat"] != "gpu_user_annotation":
            kind, size = event["name"][5:], _bytes(about)
            when = _queued(queued[_plain(kind)], event, size)
        else:
            continue
        inside = any(begin <= when <= end for _forward, begin, end in passes)
        name = "bucket" if inside and _plain(kind) == "allreduce" else kind
        span = Span(rank, "communication", COMMUNICATION, name, event["ts"], event["end"], bytes=size)
        found.append((when, len(found), span))
    return [span for *_order, span in sorted(found)]


def _queued(waiting, event, size):
    """When the collective of a gloo event was queued: the first one of its size that still waits, or the first."""
    before = [each for each in waiting if each["ts"] <= event["ts"]]
    if not before:
        return event["ts"]
    one = next((each for each in before if _bytes(each.get("args", {})) == size), before[0])
    waiting.remove(one)
    return one["ts"]


def _plain(name):
    return name.split(":")[-1].replace("_", "").removesuffix("base").removesuffix("coalesced")


def _size(kind):
    return next((size for size, kinds in SIZES.items() if str(kind).lower() in kinds), 0)


def _bytes(about):
    total = 0
    for kind, dims in zip(about.get("Input type", ()), about.get("Input Dims", ()), strict=False):
        for shape in dims if dims and isinstance(dims[0], list) else [dims]:
            total += prod(shape) * _size(kind)
    return total


def _waits(main, collectives, rank):
    """When the training thread ran no operator until a collective of this rank had ended.

    The end of a collective may be noted up to LATE after the thread has gone on; a wait then ends with the gap before.
    """
    work = _joined((event["ts"], event["end"]) for event in main if _is_work(event))
    starts, waits = [begin for begin, _end in work], []
    for span in sorted(collectives, key=lambda span: span.end):
        gaps = []
        for place in {bisect_right(starts, span.end), bisect_right(starts, span.end - LATE)}:
            begin = max(work[place - 1][1] if place else 0, waits[-1].end if waits else 0, span.start)
            gaps.append((begin, min(span.end, starts[place]) if place < len(starts) else span.end))
        begin, end = max(gaps, key=lambda gap: gap[1] - gap[0])
        if end - begin > SHORT_WAIT:
            waits.append(Span(rank, "main", WAIT, span.name, begin, end, collective=span))
    return waits


def _launches(events):
    """{correlation: when the CPU launched that kernel}."""
    return {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event["cat"] in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }


def _kernels(events, passes, rank):
    """What each stream of a GPU computed, by the phase in which the CPU launched it."""
    launched, streams = _launches(events), defaultdict(list)
    for event in events:
        if event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset") and "nccl" not in event["name"].lower():
            when = launched.get(event["args"].get("correlation"), event["ts"])
            kind = INPUT if event["cat"] == "gpu_memcpy" else OPTIMIZER
            for forward, begin, end in passes:
                if begin <= when <= end:
                    kind = BACKWARD
                elif forward is not None and forward <= when <= begin:
                    kind = FORWARD
            streams[f"stream {event['args'].get('stream', 0)}", kind].append((event["ts"], event["end"]))
    return [
        Span(rank, row, kind, kind, *pair) for (row, kind), some in streams.items() for pair in _joined(some, 20_000)
    ]


def _joined(pairs, gap=0):
    """The union of intervals; those less than `gap` apart become one."""
    union = []
    for begin, end in sorted(pairs):
        if union and begin - union[-1][1] <= gap:
            union[-1] = union[-1][0], max(union[-1][1], end)
        else:
            union.append((begin, end))
    return union


def length(pairs):
    """How long at least one was going on."""
    return sum(end - begin for begin, end in _joined(pairs))


def common(some, others):
    """How long both were going on; each a list of (begin, end)."""
    return max(0.0, length(some) + length(others) - length([*some, *others]))


def _without(span, waits):
    """The pieces of a span in which the rank did not wait."""
    begin, pieces = span.start, []
    for wait in waits:
        if wait.end > begin and wait.start < span.end:
            pieces.append((begin, wait.start))
            begin = wait.end
    pieces.append((begin, span.end))
    return [replace(span, start=start, end=end) for start, end in pieces if start < end]


def _in_steps(found, ends):
    """Those of the recorded steps, each with the number of its step; those of a name are counted in their order."""
    kept, counts = [], defaultdict(int)
    for span in found:
        span.step = bisect_right(ends, span.start) - 1
        if 0 <= span.step < len(ends) - 1:
            if span.kind == COMMUNICATION:
                span.number = counts[span.step, span.name]
                counts[span.step, span.name] += 1
            kept.append(span)
    for span in kept:
        if span.collective:
            span.step, span.number, span.collective = span.collective.step, span.collective.number, None
    return kept

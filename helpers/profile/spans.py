"""From the profiler's events of one rank to what it did when: the spans of its steps.

Nothing is marked by the one who wrote the training function; it is found in the names that PyTorch gives:
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

from ..launcher.language import marked

INPUT, FORWARD, BACKWARD, GRADIENTS, OPTIMIZER, COMMUNICATION, WAIT = (
    marked("input"),
    marked("forward"),
    marked("backward"),
    marked("gradients"),
    marked("optimizer"),
    marked("communication"),
    marked("wait"),
)
PHASES = (INPUT, FORWARD, BACKWARD, GRADIENTS, OPTIMIZER)
NODE, REDUCER, STEP, LOADER = (
    "autograd::engine::evaluate_function",
    "torch.distributed.ddp.reducer::",
    "Optimizer.step#",
    "enumerate(DataLoader)",
)
DDP = "DistributedDataParallel.forward"
FRAMES = ("autograd::", "torch::autograd", "c10d::", "torch::distributed", "torch.distributed")  # they may wait
SIZES = {
    "float": 4,
    "double": 8,
    "c10::half": 2,
    "c10::bfloat16": 2,
    "half": 2,
    "bfloat16": 2,
    "int": 4,
    "long": 8,
    "long int": 8,
    "short": 2,
    "unsigned char": 1,
    "signed char": 1,
    "char": 1,
    "bool": 1,
    "byte": 1,
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

    @property
    def length(self):
        return self.end - self.start


def spans(events, recording):
    """The Spans of one rank's steps, with times in ns of the monotonic clock."""
    done = [event for event in events if event.get("ph") == "X"]
    of_thread = defaultdict(list)
    for event in done:
        event["end"] = event["ts"] + event["dur"]
        of_thread[event["tid"]].append(event)
    main = of_thread[recording.main]
    backward = _backward(done)
    forward = [(_forward_start(links, done, since), begin) for begin, _, links, since in backward]
    found = [Span(recording.rank, "backward", BACKWARD, "backward", begin, end) for begin, end, *_ in backward]
    found += [
        Span(recording.rank, "main", FORWARD, "forward", begin, end) for begin, end in forward if begin is not None
    ]
    optimizer = [event for event in done if event["name"].startswith(STEP)]
    found += [
        Span(recording.rank, "main", OPTIMIZER, event["name"][len(STEP) :], event["ts"], event["end"])
        for event in _outermost(optimizer)
    ]
    collectives = _collectives(done, main, backward, recording.rank)
    waits = [] if recording.device != "cpu" else _waits(main, collectives, recording.rank)
    found += _between(done, main, found, recording)
    found = _in_steps(found, recording.ends)
    found = [piece for span in found for piece in _without(span, waits)]
    rest = waits + collectives + _kernels(done, backward, forward, recording.rank)
    return sorted(found + _in_steps(rest, recording.ends), key=lambda span: span.start)


# -- phases -------------------------------------------------------------------------------


def _outermost(events):
    """Those that lie in no other of the same thread, in order."""
    until = defaultdict(int)
    for event in sorted(events, key=lambda event: (event["ts"], -event["end"])):
        if event["end"] > until[event["tid"]]:
            until[event["tid"]] = event["end"]
            yield event


def _backward(events):
    """(begin, end, the forward operators it goes back to, end of the backward before) of each backward pass."""
    nodes = list(_outermost(event for event in events if event["name"].startswith((NODE, REDUCER))))
    operators = defaultdict(list)
    for event in events:
        arguments = event.get("args", {})
        if "Sequence number" in arguments and not arguments.get("Fwd thread id") and event["cat"] == "cpu_op":
            operators[arguments["Sequence number"]].append(event["ts"])
    starts = []  # of the forward operator of each node
    for node in nodes:
        candidates = operators.get(node.get("args", {}).get("Sequence number"), ())
        place = bisect_left(candidates, node["ts"])
        starts.append(candidates[place - 1] if place else None)
    known = sorted(start for start in starts if start is not None)
    passes = []
    for node, start in zip(nodes, starts, strict=True):
        end = passes[-1][1] if passes else None
        if end is None or bisect_left(known, node["ts"]) > bisect_right(known, end):  # forward work lies between
            passes.append([node["ts"], node["end"], [], end or 0])
        passes[-1][1] = max(passes[-1][1], node["end"])
        if start is not None:
            passes[-1][2].append(start)
    return [tuple(each) for each in passes if each[2]]


def _forward_start(links, events, since):
    links = [link for link in links if link > since]
    if not links:
        return None
    first = min(links)
    around = [
        event["ts"]
        for event in events
        if event["ts"] <= first < event["end"]
        and event["ts"] >= since
        and (event["cat"] == "cpu_op" or event["name"] == DDP)
    ]
    return min([first, *around])


def _between(events, main, found, recording):
    """Spans of what is done before forward (input) and between backward and optimizer (gradients)."""
    phases = sorted((span.start, span.end, span.kind) for span in found)
    starts, pairs = [phase[0] for phase in phases], defaultdict(list)
    for event in _outermost(event for event in main if _is_work(event)):
        place = bisect_right(starts, event["ts"])
        before = phases[place - 1] if place else (0, 0, OPTIMIZER)
        after = phases[place][2] if place < len(phases) else None
        kind = {(OPTIMIZER, FORWARD): INPUT, (BACKWARD, OPTIMIZER): GRADIENTS}.get((before[2], after))
        if kind and event["ts"] >= before[1] and event["ts"] >= recording.ends[0]:
            pairs[kind].append((event["ts"], event["end"]))
    loader = [event for event in events if event["name"].startswith(LOADER) or event["name"] == INPUT]
    if loader:
        pairs[INPUT] = [(event["ts"], event["end"]) for event in _outermost(loader)]
    return [
        Span(recording.rank, "input" if kind == INPUT else "main", kind, kind, *pair)
        for kind, some in pairs.items()
        for pair in (_joined(some, JOINED))
    ]


def _is_work(event):
    name = event["name"]
    own = "::" in name and not name.startswith(FRAMES)
    return event["cat"] == "cpu_op" and own or "Compiled" in name


# -- communication ------------------------------------------------------------------------


def _collectives(events, main, backward, rank):
    """Each collective with its bytes, in the order in which they were queued: gloo's threads may begin in another."""
    gloo = [event for event in events if event["name"].startswith("gloo:") and event["cat"] != "gpu_user_annotation"]
    nccl = [event for event in events if event["cat"] == "kernel" and "nccl" in event["name"].lower()]
    launched, queued, found = _launches(events), defaultdict(list), []
    for event in events:
        if event["name"].startswith("c10d::"):
            queued[_plain(event["name"])].append(event)
    for event in sorted(gloo + nccl, key=lambda event: event["ts"]):
        arguments = event.get("args", {})
        if event in nccl:
            kind = str(arguments.get("Collective name", "nccl"))
            size = arguments.get("In msg nelems", 0) * SIZES.get(str(arguments.get("dtype", "float")).lower(), 4)
            when = launched.get(arguments.get("correlation"), event["ts"])
        else:
            kind, size = event["name"][5:], _bytes(arguments)
            when = _queued(queued[_plain(event["name"])], event, size)
        inside = any(begin <= when <= end for begin, end, *_ in backward)
        name = "bucket" if inside and _plain(kind) == "allreduce" else kind
        span = Span(rank, "communication", COMMUNICATION, name, event["ts"], event["end"], bytes=size)
        found.append((when, len(found), span))
    return [span for _, _, span in sorted(found)]


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


def _bytes(arguments):
    total = 0
    for kind, dims in zip(arguments.get("Input type", ()), arguments.get("Input Dims", ()), strict=False):
        for shape in dims if dims and isinstance(dims[0], list) else [dims]:
            total += prod(shape) * SIZES.get(kind.lower(), 4 if kind == "TensorList" else 0)
    return total


def _waits(main, collectives, rank):
    """When the training thread ran no operator until a collective of this rank had ended.

    The end of a collective may be noted up to LATE after the thread has gone on; a wait then ends with the gap before.
    """
    work = list(_outermost(event for event in main if _is_work(event)))
    starts, latest = [event["ts"] for event in work], []
    for event in work:
        latest.append(max(event["end"], latest[-1] if latest else 0))
    waits = []
    for span in sorted(collectives, key=lambda span: span.end):
        gaps = []
        for place in {bisect_right(starts, span.end), bisect_right(starts, span.end - LATE)}:
            begin = max(latest[place - 1] if place else 0, waits[-1].end if waits else 0, span.start)
            gaps.append((begin, min(span.end, starts[place]) if place < len(starts) else span.end))
        begin, end = max(gaps, key=lambda gap: gap[1] - gap[0])
        if end - begin > SHORT_WAIT:
            waits.append(Span(rank, "main", WAIT, span.name, begin, end, collective=span))
    return waits


# -- CUDA ---------------------------------------------------------------------------------


def _launches(events):
    """{correlation: when the CPU launched that kernel}."""
    return {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event["cat"] in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }


def _kernels(events, backward, forward, rank):
    """What each stream of a GPU computed, by the phase in which the CPU launched it."""
    launched, streams = _launches(events), defaultdict(list)
    for event in events:
        if event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset") and "nccl" not in event["name"].lower():
            when = launched.get(event["args"].get("correlation"), event["ts"])
            kind = OPTIMIZER
            if any(begin <= when <= end for begin, end, *_ in backward):
                kind = BACKWARD
            elif any(begin is not None and begin <= when <= end for begin, end in forward):
                kind = FORWARD
            elif event["cat"] == "gpu_memcpy":
                kind = INPUT
            streams[f"stream {event['args'].get('stream', 0)}", kind].append((event["ts"], event["end"]))
    return [
        Span(rank, row, kind, kind, *pair)
        for (row, kind), pairs in streams.items()
        for pair in _joined(sorted(pairs), 20_000)
    ]


# -- intervals ----------------------------------------------------------------------------


def _joined(pairs, gap=0):
    """The union of intervals; those less than `gap` apart become one."""
    union = []
    for begin, end in sorted(pairs):
        if union and begin - union[-1][1] <= gap:
            union[-1][1] = max(union[-1][1], end)
        else:
            union.append([begin, end])
    return [tuple(pair) for pair in union]


def common(some, others):
    """How long both were going on; each a list of (begin, end)."""
    total, some, others = 0, _joined(some), _joined(others)
    place = 0
    for begin, end in some:
        while place < len(others) and others[place][1] <= begin:
            place += 1
        for low, high in others[place:]:
            if low >= end:
                break
            total += min(end, high) - max(begin, low)
    return total


def length(pairs):
    """How long at least one was going on."""
    return sum(end - begin for begin, end in _joined(pairs))


def _without(span, waits):
    """The pieces of a span in which the rank did not wait."""
    begin, pieces = span.start, []
    for wait in waits:
        if wait.end <= begin or wait.start >= span.end:
            continue
        if wait.start > begin:
            pieces.append((begin, wait.start))
        begin = wait.end
    if begin < span.end:
        pieces.append((begin, span.end))
    return [replace(span, start=start, end=end) for start, end in pieces]


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

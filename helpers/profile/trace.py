"""The traces of all ranks as one file for Perfetto or chrome://tracing."""

import gzip
import json

from .. import paths


def write(timeline, path) -> str:
    """Write the merged trace; see `Timeline.write_trace`.

    Raises:
        ValueError: this timeline was loaded from a file, which holds no trace.
    """
    from .timeline import LARGEST

    if not timeline.recordings:
        raise ValueError("this timeline was read from a file, which has no events of the profiler; record it anew")
    names, events = [], []
    zero = min(recording.ends[0] for recording in timeline.recordings)
    for recording in timeline.recordings:
        rank = recording.rank
        names.append({"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}})
        for event in json.loads(gzip.decompress(recording.events)):
            event["pid"] = rank
            if event["ph"] == "M":
                names.append(event)
            else:
                event.update(ts=(event["ts"] - zero) / 1e3, dur=event["dur"] / 1e3)
                events.append(event)
    notes = list(timeline.notes)
    events.sort(key=lambda event: event["ts"])
    lines, size, cut = [], 1000, None
    for event in names + events:
        lines.append(json.dumps(event, separators=(",", ":")))
        size += len(lines[-1]) + 2
        if size > LARGEST:
            lines.pop()
            cut = event["ts"]
            break
    if cut is not None:
        notes.append(f"cut at {LARGEST / 1e6:.0f} MB, after the first {cut / 1e3:.0f} ms")
    rows = ",\n".join(lines)
    about = {"conditions": timeline.conditions, "notes": notes, "clock_error_us": 1e6 * timeline.clock_error_s}
    text = f'{{"traceEvents":[\n{rows}\n],"displayTimeUnit":"ms","otherData":{json.dumps(about)}}}'
    path.parent.mkdir(parents=True, exist_ok=True)
    paths.replace_file(path, text)
    said = f"{path.name}: {len(lines):,} events of {timeline.ranks} rank(s), {len(text) / 1e6:.1f} MB"
    return "; ".join([said, *notes])

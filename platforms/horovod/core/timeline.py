"""A record of every collective in Chrome's trace format (https://horovod.readthedocs.io/en/stable/timeline.html)."""

import json
import threading
import time


class Timeline:
    """Between `start(path)` and `stop()`, each tensor of this rank is a row, and each collective two phases in it.

    Each line is written at once, so that the file of a job that crashes has everything up to then.
    """

    def __init__(self):
        self._file, self._rows, self._lock, self._marks, self._began = None, {}, threading.RLock(), False, 0.0

    def start(self, path, mark_cycles=False):
        """Write to `path` (a new file) from now on; `mark_cycles`: also when a round begins."""
        with self._lock:
            self.stop()
            self._file, self._marks = open(path, "w", encoding="utf-8", buffering=1), mark_cycles
            self._rows, self._began = {}, time.monotonic()
            self._file.write("[\n")

    def stop(self):
        """Finish the file, which is valid JSON then."""
        with self._lock:
            if self._file:
                self._file.write("{}]\n")
                self._file.close()
                self._file = None

    def writes(self):
        """Whether it records."""
        return self._file is not None

    def cycle(self):
        """Mark that a round begins, which Horovod calls a cycle."""
        if self._marks:
            self._write({"name": "CYCLE_START", "ph": "i", "ts": self._ts(time.monotonic()), "s": "g"})

    def ran(self, entry, began):
        """Record a collective that has just ended: it waited for other ranks until `began` and ran until now."""
        kind, ended = entry.request["kind"], time.monotonic()
        for name in entry.request.get("parts") or [entry.request["name"]]:  # of an optimizer's bucket
            name = name if name.startswith(f"{kind}.noname.") else f"{kind}.{name}"
            known, row = name in self._rows, self._rows.setdefault(name, len(self._rows) + 1)
            if not known:
                self._write({"name": "process_name", "ph": "M", "pid": row, "args": {"name": name}})
            phases = ("NEGOTIATE_" + kind.upper(), entry.submitted, began), (kind.upper(), began, ended)
            for phase, since, until in phases:
                times = {"ts": self._ts(since), "dur": round(1e6 * (until - since))}
                self._write({"name": phase, "ph": "X", "pid": row, "tid": 0, **times})

    def _ts(self, moment):
        return round(1e6 * (moment - self._began))

    def _write(self, event):
        with self._lock:
            if self._file:
                self._file.write(json.dumps(event) + ",\n")


def phases(path):
    """{tensor, without the kind before its name: (submitted, began, ended)} in ms of its last collective in a timeline.

    The job may have crashed; then the file has no end.
    """
    with open(path, encoding="utf-8") as file:
        events = [json.loads(line[:-2]) for line in file if line.startswith("{") and line.endswith(",\n")]
    names = {event["pid"]: event["args"]["name"].partition(".")[2] for event in events if event["ph"] == "M"}
    found = {}
    for event in (event for event in events if event["ph"] == "X"):
        name, begin, end = names[event["pid"]], event["ts"] / 1e3, (event["ts"] + event["dur"]) / 1e3
        found[name] = (begin, end, end) if event["name"].startswith("NEGOTIATE_") else (*found[name][:2], end)
    return found

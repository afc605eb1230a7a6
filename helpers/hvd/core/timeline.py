"""A record of every collective in Chrome's trace format (https://horovod.readthedocs.io/en/stable/timeline.html)."""

import json
import threading
import time


class Timeline:
    """Between `start(path)` and `stop()`, each tensor of this rank is a row, and each collective two phases in it."""

    def __init__(self):
        self._file, self._rows, self._lock = None, {}, threading.Lock()

    def start(self, path):
        """Write to `path` (a new file) from now on."""
        with self._lock:
            self._close()
            self._file = open(path, "w", encoding="utf-8")
            self._rows, self._began = {}, time.monotonic()
            self._file.write("[\n")

    def stop(self):
        """Finish the file, which is valid JSON then."""
        with self._lock:
            self._close()

    def _close(self):
        if self._file:
            self._file.write("{}]\n")
            self._file.close()
            self._file = None

    def ran(self, entry, began):
        """Record a collective that has just ended: it waited for other ranks until `began` and ran until now."""
        if self._file is None:
            return
        kind, ended = entry.request["kind"].upper(), time.monotonic()
        with self._lock:
            if self._file is None:
                return
            row = self._rows.get(entry.request["name"])
            if row is None:
                row = self._rows[entry.request["name"]] = len(self._rows) + 1
                self._write({"name": "process_name", "ph": "M", "pid": row, "args": {"name": entry.request["name"]}})
            self._phase(row, f"NEGOTIATE_{kind}", entry.submitted, began)
            self._phase(row, kind, began, ended)

    def _phase(self, row, name, since, until):
        times = {"ts": round(1e6 * (since - self._began)), "dur": round(1e6 * (until - since))}
        self._write({"name": name, "ph": "X", "pid": row, "tid": 0, **times})

    def _write(self, event):
        self._file.write(json.dumps(event) + ",\n")


def phases(path):
    """Read a timeline: {tensor: (submitted, began, ended)} in milliseconds, of the last collective of each tensor."""
    with open(path, encoding="utf-8") as file:
        events = [event for event in json.load(file) if event]
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    found = {}
    for event in events:
        if event["ph"] != "X":
            continue
        begin, end = event["ts"] / 1e3, (event["ts"] + event["dur"]) / 1e3
        if event["name"].startswith("NEGOTIATE_"):
            found[names[event["pid"]]] = (begin, end, end)
        else:
            found[names[event["pid"]]] = (*found[names[event["pid"]]][:2], end)
    return found

"""What a report holds, as a table for spreadsheets and as JSON for programs."""

import csv
import io
import json
import math

from ..plots.style import clean
from ..records import read, seeds

FORMULAS = ("=", "+", "-", "@")  # with one of these in front, a spreadsheet takes a text for a formula
SETTINGS = ("model", "data", "precision", "compiler", "accumulation", "seed")


def numbers(report) -> list:
    """One dict a record on disk: its machine, ladder and file, what it measured (s, bytes, shares), its speed-up."""
    rows = []
    for machine in report.machines:
        for ladder in machine.ladders:
            speeds = {row["label"]: row for row in ladder.rows()}
            for record in ladder.runs:
                of_label = speeds.get(record["label"], {})
                arrival = read.time_to_accuracy(record, report.target) if seeds.curve(record) else None
                where = {"machine": machine.name, "ladder": ladder.name, "file": record["file"]}
                compiler = (record.get("measured") or {}).get("compiler") or {}
                rows.append(
                    {
                        **where,
                        "started": record["started"],
                        **{name: record["config"].get(name) for name in SETTINGS},
                        **read.row(record),
                        "compile_s": compiler.get("compile_s"),
                        "seconds_to_target": arrival,
                        "speed_up_of_label": of_label.get("speed_up"),
                        "efficiency_of_label": of_label.get("efficiency"),
                    }
                )
    return rows


def table(rows) -> str:
    """A CSV of dicts."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _cell(value):
    if not isinstance(value, str):
        return value
    value = clean(value)
    return f"'{value}" if value.startswith(FORMULAS) else value


def json_of(report, rows) -> str:
    """A JSON with the numbers, what each ladder says and the records behind it, and what was skipped."""
    ladders = [
        {
            "machine": machine.name,
            "name": ladder.name,
            "what": ladder.what,
            "runs": ladder.rows(),
            "sentences": [said._asdict() for said in report.sentences(ladder)],
        }
        for machine in report.machines
        for ladder in machine.ladders
    ]
    skipped = [{"file": file, "why": str(why)} for file, why in report.found.skipped]
    content = {"target": report.target, "ladders": ladders, "records": rows, "skipped": skipped}
    return json.dumps(_plain(content), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value):
    """The value as JSON knows it: what is not finite becomes null."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

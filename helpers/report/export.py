"""What a report holds, as a table for spreadsheets and as JSON for programs."""

import csv
import io
import json

from ..plots import seeds
from ..plots.style import clean
from ..records import read

FORMULAS = ("=", "+", "-", "@")  # with one of these in front, a spreadsheet takes a text for a formula


def numbers(report) -> list:
    """One dict a record on disk: machine, ladder, file, settings, what it measured (s, bytes, shares), its speed-up."""
    rows = []
    for machine, ladder in report.ladders:
        speeds = {row["label"]: row for row in ladder.rows()}
        for record in ladder.runs:
            of_label = speeds.get(record["label"], {})
            arrival = read.time_to_accuracy(record, report.target) if seeds.curve(record) else None
            compiler = (record.get("measured") or {}).get("compiler") or {}
            row = {"machine": machine.name, "ladder": ladder.name, "file": record["file"]}
            row |= {"started": record["started"], **record["config"], **read.row(record)}
            row |= {"compile_s": compiler.get("compile_s"), "seconds_to_target": arrival}
            row |= {f"{key}_of_label": of_label.get(key) for key in ("speed_up", "efficiency")}
            rows.append(row)
    return rows


def table(rows) -> str:
    """A CSV of dicts."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _cell(value):
    text = clean(value) if isinstance(value, str) else ""
    return f"'{text}" if text.startswith(FORMULAS) else text or value


def json_of(report, rows) -> str:
    """A JSON with the numbers, what each ladder says and the records behind it, and what was skipped."""
    said = [
        {"machine": machine.name, "ladder": ladder.name, **sentence._asdict()}
        for machine, ladder in report.ladders
        for sentence in report.sentences(ladder)
    ]
    skipped = [{"file": file, "why": why} for file, why in report.found.skipped]
    content = json.dumps({"target": report.target, "records": rows, "sentences": said, "skipped": skipped})
    content = json.loads(content, parse_constant=lambda _infinite: None)  # JSON has no NaN
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"

"""What a report holds, as tables for spreadsheets and as JSON for programs."""

import csv
import io
import json
import math

from ..plots.style import clean
from ..records import read, seeds

FORMULAS = ("=", "+", "-", "@")  # with one of these in front, a spreadsheet takes a text for a formula


def numbers(report) -> list:
    """One dict a record on disk: its machine, ladder and file, what it measured (s, bytes, shares), its speed-up."""
    rows = []
    for site, ladder in _ladders(report):
        speeds = {row["label"]: row for row in ladder.rows()}
        for record in ladder.runs:
            of_label = speeds.get(record["label"], {})
            rows.append(
                {
                    "machine": site.name,
                    "ladder": ladder.name,
                    "file": record["file"],
                    "started": record["started"],
                    "model": record["config"]["model"],
                    "data": record["config"]["data"],
                    "precision": record["config"]["precision"],
                    "compiler": record["config"]["compiler"],
                    "accumulation": record["config"]["accumulation"],
                    "seed": record["config"]["seed"],
                    **read.row(record),
                    "compile_s": ((record.get("measured") or {}).get("compiler") or {}).get("compile_s"),
                    "seconds_to_target": (
                        read.time_to_accuracy(record, report.target) if seeds.curve(record) else None
                    ),
                    "speed_up_of_label": of_label.get("speed_up"),
                    "efficiency_of_label": of_label.get("efficiency"),
                }
            )
    return rows


def _ladders(report):
    return [(site, ladder) for site in report.sites for ladder in site.ladders]


def table(rows) -> str:
    """A CSV of dicts."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_cell(row.get(name)) for name in names] for row in rows)
    return out.getvalue()


def _cell(value):
    if isinstance(value, str):
        value = clean(value)
        return f"'{value}" if value.startswith(FORMULAS) else value
    return "" if value is None else value


def json_of(report) -> str:
    """A JSON with machines, ladders, sentences with the records behind them, numbers, and what was skipped."""
    ladders = [
        {
            "machine": site.name,
            "name": ladder.name,
            "what": ladder.what,
            "started": ladder.started,
            "baseline": ladder.comparison and ladder.comparison.baseline["label"],
            "runs": ladder.rows(),
            "sentences": [said._asdict() for said in report.sentences(ladder)],
        }
        for site, ladder in _ladders(report)
    ]
    content = {
        "target": report.target,
        "machines": [_machine(site) for site in report.sites],
        "ladders": ladders,
        "between_machines": [said._asdict() for said in report.between],
        "records": numbers(report),
        "skipped": [{"file": file, "why": why} for file, why in report.found.skipped],
    }
    return json.dumps(_plain(content), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _machine(site):
    first = site.records[0]
    return {"name": site.name, "records": len(site.records), "hardware": first["environment"]["machine"]}


def _plain(value):
    """The value as JSON knows it: what is not finite becomes null."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

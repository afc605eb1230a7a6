"""The report of a comparison: files to keep and to publish, and a text for the terminal."""

import textwrap
import unicodedata
from html import escape
from itertools import groupby
from pathlib import Path

from .. import plots
from ..paths import replace_file
from ..plots import style
from ..plots.runs import row, wall_time
from ..plots.style import clean, number
from .everything import everything
from .html import figure, page, table
from .sentences import reading

__all__ = ["everything", "reading", "text", "write"]

COLUMNS = 100  # of a terminal
SPARE = ("global batch", "devices", "peak memory (MB)", "final loss", "images/s", "efficiency", "predicted")


def write(comparison, folder) -> dict:
    """Write speedup.svg, speedup.png, table.csv (plain numbers) and report.html (one file) to `folder`.

    Returns the paths by name. Each file is replaced in one step.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    drawn, alt = plots.speed_up(comparison)
    files = {"report": "report.html", "plot": "speedup.svg", "picture": "speedup.png", "table": "table.csv"}
    paths = {kind: folder / file for kind, file in files.items()}
    replace_file(paths["plot"], style.svg(drawn, alt))
    replace_file(paths["picture"], style.png(drawn))
    replace_file(paths["table"], comparison.frame().to_csv(index=False, lineterminator="\n"))
    replace_file(paths["report"], _html(comparison))
    return paths


# -- terminal -----------------------------------------------------------------------------


def text(comparison) -> str:
    """The table, with as many columns as fit in COLUMNS characters, and the reading below it."""
    frame = plots.table(comparison)
    frame["run"] = [clean(run, 40) for run in frame["run"]]
    lines = []
    for sentence, _ in reading(comparison):
        lines += textwrap.wrap(sentence, COLUMNS, initial_indent="- ", subsequent_indent="  ")
    return "\n".join([*_aligned(frame), "", *lines])


def _aligned(frame):
    """Lines of a table: the first column to the left, the others to the right."""
    columns = [[column, *frame[column]] for column in frame if not (frame[column] == "–").all()]
    spare = list(SPARE)
    if not any(column[0] == "accuracy" for column in columns):
        spare.remove("final loss")  # speed never stands alone
    while spare and sum(max(map(_width, column)) + 2 for column in columns) - 2 > COLUMNS:
        leave = spare.pop(0)
        columns = [column for column in columns if column[0] != leave]
    padded = []
    for place, column in enumerate(columns):
        widest = max(map(_width, column))
        fill = [" " * (widest - _width(cell)) for cell in column]
        pairs = zip(fill, column, strict=True)
        padded.append([space + cell if place else cell + space for space, cell in pairs])
    head, *body = ["  ".join(cells).rstrip() for cells in zip(*padded, strict=True)]
    return [head, "-" * max(map(_width, [head, *body])), *body]


def _width(cell):
    """Columns that a text takes in a terminal; Chinese and Japanese characters take two."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in cell)


# -- page ---------------------------------------------------------------------------------


def _html(comparison):
    """The whole page; it asks for nothing outside itself."""
    records = comparison.records
    what, how = plots.settings(records)
    title = f"Speed-up report: {what}"
    frame = plots.table(comparison)
    timed = [record for record in records if record.get("measured")]
    body = f"""{figure(*plots.speed_up(comparison))}
<h2>What it says</h2>
{_reading(comparison)}
<h2>The numbers</h2>
{table("Numbers of each run", list(frame), frame.to_numpy().tolist())}
<p class="soft">Step time: median (middle half), after the warm-up. Speed-up: images/s against the first
run. Efficiency: speed-up divided by the devices. Peak memory: of the process that needed most.</p>
<h2>Where the wall time went</h2>
{figure(*plots.parts(timed))}
{_parts(timed)}
<h2>Settings</h2>
{_facts("setting", [record["config"] for record in records])}
<h2>Machine and versions</h2>
{_facts("machine or version", [_surroundings(record) for record in records])}"""
    return page(title, f"{how} · {clean(records[0]['started'])}", body)


def _reading(comparison):
    """The sentences, one item for each record that they are taken from."""
    items = []
    for run, pairs in groupby(reading(comparison), key=lambda pair: pair[1]):
        said = " ".join(escape(sentence) for sentence, _ in pairs)
        items.append(f"<li>{said} <small>Record {escape(clean(run))}.</small></li>")
    return "<ul>\n" + "\n".join(items) + "\n</ul>"


def _parts(records):
    spent = [wall_time(record) for record in records]
    parts = list(dict.fromkeys(part for times in spent for part in times if part != "rest")) + ["rest"]
    rows = [
        [style.name(row(record)), *(number(times.get(part)) for part in parts), number(record["total_s"])]
        for record, times in zip(records, spent, strict=True)
    ]
    return table("Wall time by part", ["run (seconds)", *parts, "whole run"], rows)


def _facts(kind, tables):
    """One table of several dicts; where they differ, their values stand one after the other."""
    rows = []
    for key in dict.fromkeys(key for facts in tables for key in facts):
        values = [clean("–" if facts.get(key) is None else facts[key]) for facts in tables]
        rows.append((key, " / ".join(dict.fromkeys(values))))
    return table(kind, [kind, "value"], rows, "plain")


def _surroundings(record):
    around = record["environment"]
    return {**around["machine"], "system": around["system"], **around["versions"], **around["code"]}

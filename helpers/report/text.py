"""The report as text, for a terminal."""

import textwrap
import unicodedata

from .. import plots
from ..launcher.language import local
from ..plots.style import clean

COLUMNS = 100  # of a terminal
FILL = "\0"  # behind a character that takes two columns
SPARE = ("global batch", "devices", "peak memory (MB)", "final loss", "/s", "efficiency", "predicted")  # ends of names


def text(report, newest=None) -> str:
    """Machines, the `newest` ladders of each (None: all) with their tables, and sentences, each with its record."""
    told = [summary(report)]
    for site in report.sites:
        told += _headed(local(site.name))
        for ladder in site.ladders[:newest]:
            told += ["", f"{ladder.called}: {ladder.what}, {count(ladder.runs)}"]
            told += ["", *table(plots.cells(ladder.comparison)), ""] if ladder.comparison else []
            told += lines(report.sentences(ladder))
    if report.between:
        told += [*_headed(local("Machines side by side")), *lines(report.between)]
    return "\n".join(told)


def _headed(title):
    return ["", title, "=" * width(title)]


def lines(said) -> list:
    """Lines of the sentences, each with the first record behind it."""
    found = []
    for sentence in said:
        more = f" +{len(sentence.runs) - 1}" if len(sentence.runs) > 1 else ""
        backed = f"{local(sentence.text)} [{clean(sentence.runs[0], 60)}{more}]"
        filled = "".join(c + FILL * (width(c) - 1) for c in backed)  # textwrap counts characters
        wrapped = textwrap.wrap(filled, COLUMNS, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
        found += [line.replace(FILL, "") for line in wrapped]
    return found


def summary(report) -> str:
    """What was read, in a sentence or two."""
    told = local("{runs} of 1 machine", runs=count(report.records))
    if len(report.sites) != 1:
        told = local("{runs} of {n} machines", runs=count(report.records), n=len(report.sites))
    ended = [record["status"] for record in report.records if record["status"] != "completed"]
    if ended:
        told = local("{told}, {n} of them not completed", told=told, n=len(ended))
    told = local("{text}.", text=told)
    skipped = [f"{clean(file, 100)} ({local(clean(why, 200))})" for file, why in report.found.skipped]
    if skipped:
        told = local("{told} Skipped, since it is no record: {files}.", told=told, files="; ".join(skipped))
    return told


def count(records) -> str:
    """Such as "2 runs"."""
    return local("1 run") if len(records) == 1 else local("{n} runs", n=len(records))


def table(cells) -> list:
    """Lines of a table, the first column to the left and the others to the right, with the columns that fit.

    Args:
        cells: rows of texts; the first names the columns.
    """
    columns = [[clean(cell, 36) for cell in column] for column in zip(*cells, strict=True)]
    columns = [column for column in columns if set(column[1:]) != {"–"}]
    spare = list(SPARE)
    if not any(column[0] == "accuracy" for column in columns):
        spare.remove("final loss")  # speed never stands alone
    while spare and sum(max(map(width, column)) + 2 for column in columns) - 2 > COLUMNS:
        leave = spare.pop(0)
        columns = [column for column in columns if not column[0].endswith(leave)]
    padded = []
    for place, column in enumerate([local(cell) for cell in column] for column in columns):
        widest = max(map(width, column))
        fill = [" " * (widest - width(cell)) for cell in column]
        padded.append([space + cell if place else cell + space for space, cell in zip(fill, column, strict=True)])
    head, *body = ["  ".join(row).rstrip() for row in zip(*padded, strict=True)]
    return [head, "-" * max(map(width, [head, *body])), *body]


def width(cell) -> int:
    """Columns that a text takes in a terminal; Chinese and Japanese characters take two."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in cell)

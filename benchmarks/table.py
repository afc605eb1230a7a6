"""The table of docs/project/benchmarks.md: each target beside what was measured, and on which machine that was."""

from helpers.plots.style import clean, number

from .records import verdicts

COLUMNS = ["benchmark", "what", "measured", "target", "verdict"]
SIGNS = {"<=": "≤", ">=": "≥"}


def lines(records) -> list:
    """The table in Markdown, what was noted below it, and the machines; of no records one line that says so."""
    if not records:
        return ["Nothing is recorded yet: `python -m benchmarks --keep` does it.", ""]
    told = [verdict for name, record in records.items() for verdict in verdicts(record, name)]
    rows = [COLUMNS, ["---"] * len(COLUMNS), *(row(verdict) for verdict in told)]
    table = ["| " + " | ".join(_cell(cell) for cell in cells) + " |" for cells in rows]
    notes = [f"- {name}: {clean(note)}" for name, record in records.items() for note in record["notes"]]
    without = [name for name, record in records.items() if not record["targets"]]
    if without:
        notes.append(f"- Measured without a target, in `recorded/bench`: {', '.join(without)}.")
    if notes:  # many lines: they open at a click
        notes = ["<details><summary>What stands behind the rows</summary>", "", *notes, "", "</details>", ""]
    grids = [line for name, record in records.items() if record["grid"] for line in grid(name, record)]
    return [summary(told), "", *table, "", *grids, *notes, *machines(records)]


def grid(name, record) -> list:
    """The rows "what: who" of a record as a table with a column for each contender; bold is the best of a row."""
    found = {}
    for row, values in record["rows"].items():
        what, _, who = row.partition(": ")
        found.setdefault(what, {})[who] = values
    names = list(dict.fromkeys(who for row in found.values() for who in row))
    told = [[name, *names], ["---"] * (len(names) + 1)]
    for what, row in found.items():
        timed = [values["median"] for values in row.values() if "unit" not in values and "bad" not in values]
        told.append([what, *(reached(row.get(who), min(timed, default=None), record["unit"]) for who in names)])
    return [*("| " + " | ".join(_cell(cell) for cell in cells) + " |" for cells in told), ""]


def reached(row, best, unit) -> str:
    """A cell of `grid`; "✗" stands at what lets a reader down, and bold is the best."""
    if not row or row["median"] is None:
        return "–"
    value = row["median"]
    if row.get("unit") == "of 1":
        return "yes" if value == 1 else f"{value:.0%} ✗" if value else "no ✗"
    if "bad" in row:
        return f"{row['max']:g} ✗"
    return f"**{amount(value, unit)}**" if value == best else amount(value, "" if "unit" in row else unit)


def summary(told) -> str:
    """How many of the targets are met."""
    met, missed = (sum(verdict.met is is_met for verdict in told) for is_met in (True, False))
    unknown = len(told) - met - missed
    return f"{met} of {len(told)} targets are met, {missed} missed" + f", {unknown} not measured" * bool(unknown) + "."


def row(verdict) -> list:
    """The cells of one target."""
    return [verdict.benchmark, verdict.what, measured(verdict), goal(verdict), said(verdict)]


def goal(verdict) -> str:
    """Such as "≤ 0.1 s"."""
    return f"{SIGNS[verdict.sign]} {verdict.goal:,g} {verdict.unit}".strip()


def said(verdict) -> str:
    """Such as "met", or "missed: " with the reason."""
    if verdict.met:
        return "met"
    return f"{'missed' if verdict.met is False else 'open'}: {clean(verdict.why)}"


def measured(verdict) -> str:
    """The median with its spread, if it has one; "–" where there is none."""
    if verdict.value is None:
        return "–"
    spread = f" ({number(verdict.low)} to {number(verdict.high)})" if verdict.low is not None else ""
    return amount(verdict.value, verdict.unit) + spread


def amount(value, unit) -> str:
    """A number with its unit."""
    return f"{number(value) if value else 0} {unit}".strip()


def machines(records) -> list:
    """A sentence for each machine and day, with what was measured there."""
    found = {}
    for name, record in records.items():
        machine, versions = record["environment"]["machine"], record["environment"]["versions"]
        devices = f", {machine['count']} {machine['kind']} device(s)" * (machine["kind"] != "cpu")
        where = f"{record['started'][:10]} on {clean(machine['name'])}, {machine['cores']} cores{devices}, torch "
        found.setdefault(f"{where}{versions['torch']}", []).append(name)
    told = [f"Recorded {where}: {', '.join(names)}." for where, names in found.items()]
    return [line for sentence in told for line in (sentence, "")]


def _cell(text):
    return clean(text).replace("|", "\\|")

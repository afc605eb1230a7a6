"""The report as a page, and as a notebook shows it: what the templates page.html and parts.html are filled with."""

from functools import lru_cache
from hashlib import sha256

from .. import plots
from ..language import _, chosen
from ..plots import style
from ..plots.style import clean, number, percent
from ..records import read
from ..records.words import samples_of
from . import figures, published
from .conclusions import COLUMNS, conclusions

FIGURES = 3  # ladders of a machine, the newest, that are drawn; the page stays small enough to be sent
LINKS = 6  # records that a sentence names at most


def page_of(report) -> str:
    """The whole page; it asks for nothing outside itself."""
    records, machines = report.records, report.machines
    places = _anchors(records)
    how = _("newest {newest} · target for the time to accuracy: {target}")
    theirs = published.figure(machines)
    return (
        _templates()
        .get_template("page.html")
        .render(
            title=_("All runs: {runs} on {n} machine(s)").format(runs=len(records), n=len(machines)),
            how=how.format(
                newest=max(str(record["started"]) for record in records)[:16], target=percent(report.target)
            ),
            summary=report.summary(),
            conclusions=[[_(name) for name in COLUMNS], *(row.text for row in conclusions(report))],
            machines=[
                {
                    "name": machine.name,
                    "ladders": [_ladder(report, one, places, age < FIGURES) for age, one in enumerate(machine.ladders)],
                }
                for machine in machines
            ],
            between=_images(figures.machines(machines)),
            published=_images([theirs] if theirs else []),
            records=_records(report, records, places),
            drawn=FIGURES,
        )
    )


def show(report, ladder) -> None:
    """Display the sentences about a ladder, and the records that they link to."""
    from IPython.display import display

    from .report import lines

    places, said = _anchors(report.records), report.sentences(ladder)
    cited = {run for sentence in said for run in sentence.runs}
    records = _records(report, [one for one in report.records if one["run_id"] in cited], places)
    parts = _templates().get_template("parts.html").module
    table = parts.table(_("Records"), records["cells"], "", records["ids"])
    html = parts.sentences(_linked(said, places)) + table
    display({"text/html": str(html), "text/plain": "\n".join(lines(said))}, raw=True)


@lru_cache
def _templates():
    import jinja2

    undefined = jinja2.StrictUndefined  # a misspelt name is an error, not an empty text
    found = jinja2.Environment(loader=jinja2.PackageLoader(__package__, ""), autoescape=True, undefined=undefined)
    found.globals.update(_=_, language=chosen)
    return found


def _ladder(report, ladder, places, drawn):
    measured = [record for record in ladder.records if record.get("measured")]
    shown = [*report.figures(ladder), *([plots.parts(measured)] if measured else [])] if drawn else []
    return {
        "name": ladder.called,
        "what": ladder.what,
        "said": _linked(report.sentences(ladder), places),
        "figures": _images(shown),
        "numbers": plots.cells(ladder.comparison) if ladder.comparison else None,
        "settings": _settings(ladder.records) if drawn else None,
    }


def _images(drawn):
    return [{"src": style.data_uri(style.png(figure)), "alt": alt} for figure, alt in drawn]


def _linked(said, places):
    """Sentences with links to their records."""
    return [
        {
            "text": clean(one.text, 2000),
            "more": max(0, len(one.runs) - LINKS),
            "links": [(places[run], clean(run, 60)) for run in one.runs[:LINKS] if run in places],
        }
        for one in said
    ]


def _settings(records):
    """Settings, machine and versions; where records differ, their values stand one after the other."""
    facts = []
    for record in records:
        around = record["environment"]
        facts.append({**record["config"], **around["machine"], **around["versions"], **around["code"]})
    cells = [[_("setting, machine or version"), _("value")]]
    for key in dict.fromkeys(key for of_one in facts for key in of_one):
        values = [clean("–" if of_one.get(key) is None else of_one[key]) for of_one in facts]
        cells.append([key, " / ".join(dict.fromkeys(values))])
    return cells


def _records(report, records, places):
    """The table of records, a row each, with the names that sentences link to."""
    machine_of = {record["run_id"]: machine.name for machine in report.machines for record in machine.records}
    rows = [read.row(record) for record in records]
    named = (_("record"), _("file"), _("machine"), _("run"), _("status"), _("ms a step"))
    cells = [[*named, f"{samples_of(rows)}/s", _("accuracy"), _("started")]]
    for record, row in zip(records, rows, strict=True):
        step, rate = number(row["step_time_s"] and 1000 * row["step_time_s"]), number(row["images_per_s"])
        where = [clean(record["run_id"], 60), clean(record["file"], 80), machine_of[record["run_id"]]]
        what = [clean(record["label"], 60), _(record["status"])]
        cells.append([*where, *what, step, rate, percent(row["accuracy"]), clean(record["started"])[:16]])
    return {"cells": cells, "ids": [places[record["run_id"]] for record in records]}


def _anchors(records):
    """{run_id: a name that a link can have, the same in every cell of a notebook}."""
    return {run: f"record-{sha256(run.encode()).hexdigest()[:12]}" for run in (record["run_id"] for record in records)}

"""The report as a page, and as a notebook shows it: what the templates page.html and parts.html are filled with."""

from functools import lru_cache
from hashlib import sha256

from .. import plots
from ..launcher.language import chosen, local, marked, sentences
from ..plots import style
from ..plots.runs import row, wall_time
from ..plots.style import clean, number, percent
from ..records import read
from ..records.words import samples_of
from . import figures, published, text

FIGURES = 3  # ladders of a machine, the newest, that are drawn; the page stays small enough to be sent
LINKS = 6  # records that a sentence names at most


def page_of(report) -> str:
    """The whole page; it asks for nothing outside itself."""
    records, several = report.records, len(report.sites) != 1
    places = _anchors(records)
    single = len(report.sites) == len(report.sites[0].ladders) == 1
    title = local("All runs: {runs} on 1 machine", runs=text.count(records))
    if several:
        title = local("All runs: {runs} on {n} machines", runs=text.count(records), n=len(report.sites))
    if single:
        title = local("Speed-up report: {what}", what=report.sites[0].ladders[0].what)
    newest = max(str(record["started"]) for record in records)
    theirs = published.figure(report.sites)
    return (
        _templates()
        .get_template("page.html")
        .render(
            title=title,
            single=single,
            drawn=FIGURES,
            summary=text.summary(report),
            how=local(
                "newest {newest} · target for the time to accuracy: {target}",
                newest=clean(newest),
                target=percent(report.target),
            ),
            sites=[_site(report, site, places) for site in report.sites],
            between={
                "figures": _images(figures.machines(report.sites)) if report.between else [],
                "said": _linked(report.between, places),
            },
            published={
                "figures": _images([theirs] if theirs else []),
                "said": _linked(published.sentences(report.sites), places),
            },
            records=_records(report, records, places),
        )
    )


def show(report, ladder) -> None:
    """Display the sentences about a ladder, and the records that they link to."""
    from IPython.display import display

    places, said = _anchors(report.records), report.sentences(ladder)
    cited = {run for sentence in said for run in sentence.runs}
    records = _records(report, [one for one in report.records if one["run_id"] in cited], places)
    parts = _templates().get_template("parts.html").module
    table = parts.table(local("Records"), records["cells"], "", records["ids"])
    html = parts.sentences(_linked(said, places)) + table
    display({"text/html": str(html), "text/plain": "\n".join(text.lines(said))}, raw=True)


@lru_cache
def _templates():
    import jinja2

    undefined = jinja2.StrictUndefined  # a misspelt name is an error, not an empty text
    found = jinja2.Environment(loader=jinja2.PackageLoader(__package__, ""), autoescape=True, undefined=undefined)
    found.globals.update(local=local, language=chosen)
    return found


# -- parts --------------------------------------------------------------------------------


def _site(report, site, places):
    found = [_ladder(report, ladder, places, age < FIGURES) for age, ladder in enumerate(site.ladders)]
    several = site is report.sites[0] and len(site.ladders) > 1  # of one ladder it is among its own figures
    compiling = figures.compile_cost(site.ladders) if several else []
    return {"name": local(site.name), "ladders": found, "compiling": _images(compiling)}


def _ladder(report, ladder, places, drawn):
    measured = [record for record in ladder.records if record.get("measured")]
    return {
        "name": ladder.called,
        "what": ladder.what,
        "said": _linked(report.sentences(ladder), places),
        "figures": _images(report.figures(ladder)) if drawn else [],
        "samples": samples_of(ladder.rows()),
        "numbers": _in_words(plots.cells(ladder.comparison)) if ladder.comparison else None,
        "wall_time": _wall_time(measured) if drawn and measured else None,
        "settings": _settings(ladder.records) if drawn else None,
    }


def _in_words(cells):
    return [[local(cell) for cell in row] for row in cells]


def _images(drawn):
    return [{"src": style.data_uri(style.png(figure)), "alt": sentences(alt)} for figure, alt in drawn]


def _linked(said, places):
    """Sentences with links to their records."""
    return [
        {
            "text": local(clean(one.text, 2000)),
            "several": len(one.runs) > 1,
            "more": max(0, len(one.runs) - LINKS),
            "links": [(places[run], clean(run, 60)) for run in one.runs[:LINKS] if run in places],
        }
        for one in said
    ]


def _wall_time(records):
    spent = [wall_time(record) for record in records]
    parts = list(dict.fromkeys(part for times in spent for part in times if part != "rest")) + ["rest"]
    cells = [[marked("run (seconds)"), *parts, marked("whole run")]]
    for record, times in zip(records, spent, strict=True):
        cells.append([style.name(row(record)), *(number(times.get(p)) for p in parts), number(record["total_s"])])
    return {"figures": _images([plots.parts(records)]), "cells": _in_words(cells)}


def _settings(records):
    """Settings, machine and versions; where records differ, their values stand one after the other."""
    facts = []
    for record in records:
        around = record["environment"]
        facts.append(
            {
                **record["config"],
                **around["machine"],
                "system": around["system"],
                **around["versions"],
                **around["code"],
            }
        )
    cells = [[local("setting, machine or version"), local("value")]]
    for key in dict.fromkeys(key for of_one in facts for key in of_one):
        values = [clean("–" if of_one.get(key) is None else of_one[key]) for of_one in facts]
        cells.append([key, " / ".join(dict.fromkeys(values))])
    return cells


def _records(report, records, places):
    """The table of records, a row each, with the names that sentences link to."""
    site_of = {record["run_id"]: site.name for site in report.sites for record in site.records}
    rows = [read.row(record) for record in records]
    names = (
        marked("record"),
        marked("file"),
        marked("machine"),
        marked("run"),
        marked("status"),
        marked("ms a step"),
        f"{samples_of(rows)}/s",
        marked("accuracy"),
        marked("started"),
    )
    cells = [[local(name) for name in names]]
    for record, numbers in zip(records, rows, strict=True):
        cells.append(
            [
                clean(record["run_id"], 60),
                clean(record["file"], 80),
                local(site_of.get(record["run_id"], "")),
                local(clean(record["label"], 60)),
                local(record["status"]),
                number(numbers["step_time_s"] and 1000 * numbers["step_time_s"]),
                number(numbers["images_per_s"]),
                percent(numbers["accuracy"]),
                clean(record["started"])[:16],
            ]
        )
    return {"cells": cells, "ids": [places[record["run_id"]] for record in records]}


def _anchors(records):
    """{run_id: a name that a link can have, the same in every cell of a notebook}."""
    return {run: f"record-{sha256(run.encode()).hexdigest()[:12]}" for run in (record["run_id"] for record in records)}

"""The report as one page: what the templates page.html and parts.html are filled with."""

from functools import lru_cache

from .. import plots
from ..language import _, chosen
from ..plots import style
from ..plots.style import clean, number, percent
from ..records import read
from ..records.words import samples_of
from . import figures, published
from .sentences import COLUMNS, conclusions


def page_of(report) -> str:
    """The whole page; it asks for nothing outside itself."""
    newest = max(str(record["started"]) for record in report.records)[:16]
    how = _("newest {newest} · target for the time to accuracy: {target}")
    page = _templates().get_template("page.html")
    return page.render(
        report=report,
        title=_("All runs: {runs} on {n} machine(s)").format(runs=len(report.records), n=len(report.machines)),
        how=how.format(newest=newest, target=percent(report.target)),
        conclusions=[[_(name) for name in COLUMNS], *(row.text for row in conclusions(report))],
        drawn=3,  # ladders of a machine, the newest; the page stays small enough to be sent
        html=style.html,
        parts=lambda ladder: plots.parts([record for record in ladder.records if record.get("measured")]),
        cells=plots.cells,
        between=figures.machines(report.machines),
        published=[published.figure(report.machines)],
        records=_records(report),
    )


@lru_cache
def _templates():
    import jinja2

    undefined = jinja2.StrictUndefined  # a misspelt name is an error, not an empty text
    found = jinja2.Environment(loader=jinja2.PackageLoader(__package__, ""), autoescape=True, undefined=undefined)
    found.globals.update(_=_, clean=clean, language=chosen)
    return found


def _records(report):
    """The table of records, a row each."""
    machine_of = {record["run_id"]: machine.name for machine in report.machines for record in machine.records}
    rows = [read.row(record) for record in report.records]
    named = (_("record"), _("file"), _("machine"), _("run"), _("status"), _("ms a step"))
    cells = [[*named, f"{samples_of(rows)}/s", _("accuracy"), _("started")]]
    for record, row in zip(report.records, rows, strict=True):
        step, rate = number(row["step_time_s"] and 1000 * row["step_time_s"]), number(row["images_per_s"])
        where = [clean(record["run_id"]), clean(record["file"], 80), machine_of[record["run_id"]]]
        what = [clean(record["label"], 60), _(record["status"])]
        cells.append([*where, *what, step, rate, percent(row["accuracy"]), clean(record["started"])[:16]])
    return cells

"""The report of all runs as a page, and as what a notebook shows: figures, sentences, and the records they link to."""

import re
from html import escape

from .. import plots
from ..plots.style import clean, number, percent
from ..records import store
from . import figures as report_figures
from . import published
from . import text as report_text
from .drawing import Drawing
from .html import page, table

FIGURES = 3  # ladders of a machine, the newest, that are drawn; the page stays small enough to be sent
WHOLE = 2000  # records that a page has all of; of more it has the newest ladders, so that a browser can show it,
SHORT_LADDERS, SHORT_FIGURES = 12, 1  # so many of each machine, and so many of them drawn
LINKS = 6  # records that a sentence names at most
NUMBERS = "Step time: median (middle half), after the warm-up. Speed-up: images/s against the first run."


def page_of(made) -> str:
    """The whole page."""
    most, figures = (None, FIGURES) if len(made.records) <= WHOLE else (SHORT_LADDERS, SHORT_FIGURES)
    makers = _makers(made, figures)
    with Drawing([maker for of_place in makers.values() for maker in of_place]) as drawing:
        return _page(made, most, figures, lambda place: [part for one in makers[place] for part in drawing.of(one)])


def _makers(made, figures):
    """{where on the page: what makes the figures there}, that which takes longest first."""
    found = {"published": [lambda: [published.figure(made.sites)]] * published.known()}
    for place, site in enumerate(made.sites):
        for age, ladder in enumerate(site.ladders[:figures]):
            found[place, age] = report_figures.makers(ladder, made.target)
    found["compiling"] = report_figures.compile_makers(made.sites[0].ladders)
    found["machines"] = [lambda: report_figures.machines(made.sites)] * (len(made.sites) > 1)
    return found


def _page(made, most, figures, drawn):
    records = _shown(made, most)
    places = _anchors(records)
    newest = max(str(record["started"]) for record in made.records)
    body = [f"<p>{escape(report_text.summary(made))}</p>"]
    for place, site in enumerate(made.sites):
        body += _site(made, place, made.of(site, most), figures, places, drawn)
    if made.between:
        body += ["<h2>Machines side by side</h2>", *drawn("machines"), sentences(made.between, places)]
    body += _published(made, places, drawn)
    body += ["<h2>Records</h2>", records_table(records, places, made)]
    if len(records) < len(made.records):
        body.append(f'<p class="soft">{len(records):,} of {len(made.records):,}: those of the ladders above.</p>')
    title = f"All runs: {report_text.count(made.records)} on {len(made.sites)} machine{'s' * (len(made.sites) != 1)}"
    how = f"newest {clean(newest)} · target for the time to accuracy: {percent(made.target)}"
    return page(title, how, "\n".join(body))


def _site(made, place, of_site, figures, places, drawn):
    """A machine: its ladders, of which the newest are drawn."""
    site = made.sites[place]
    yield f"<h2>{escape(site.name)}</h2>"
    for age, (ladder, said) in enumerate(of_site):
        yield f"<h3>{escape(clean(ladder.what))}, {escape(clean(ladder.name))}</h3>"
        yield from drawn((place, age)) if age < figures else ()
        yield sentences(said, places)
        yield from _numbers(ladder)
    if len(of_site) > figures:
        newest_of = f"newest {figures} ladders" if figures > 1 else "newest ladder"
        yield f'<p class="soft">Figures are those of the {newest_of}.</p>'
    if len(of_site) < len(site.ladders):
        yield f'<p class="soft">{_left_out(site, len(of_site))}</p>'
    yield from drawn("compiling") if place == 0 else ()


def _shown(made, most):
    """The records of the newest `most` ladders of each machine (None: all), and those that sentences name."""
    if most is None:
        return made.records
    ids = {run["run_id"] for site in made.sites for ladder in site.ladders[:most] for run in ladder.runs}
    said = [*made.between, *(one for site in made.sites for _, said in made.of(site, most) for one in said)]
    ids.update(run for one in said for run in one.runs[:LINKS])
    return [record for record in made.records if record["run_id"] in ids]


def _left_out(site, shown):
    """What is said of ladders that are not on the page."""
    older = site.ladders[shown:]
    runs = [run for ladder in older for run in ladder.runs]
    broken = sum(run["status"] != "completed" for run in runs)
    return escape(
        f"The newest {shown} of {len(site.ladders):,} ladders. {len(runs):,} runs of older ones, the first of them "
        f"{clean(older[-1].started)[:16]}, {broken:,} of them not completed, are not on this page; their numbers are "
        "in the CSV: python -m helpers report --formats csv"
    )


def _numbers(ladder):
    if ladder.comparison:
        head, *rows = plots.cells(ladder.comparison)
        yield "<details><summary>The numbers</summary>"
        yield table(f"Numbers of {ladder.name}", head, rows)
        yield f'<p class="soft">{NUMBERS}</p></details>'


def _published(made, places, drawn):
    if not published.known():
        return []
    said = published.sentences(made.sites)
    return ["<h2>Beside a published ladder</h2>", *drawn("published"), sentences(said, places)]


# -- sentences and what they link to ------------------------------------------------------


def sentences(said, places) -> str:
    """A list of sentences, each with links to its records."""
    items = []
    for text, runs in said:
        links = [f'<a href="#{places[run]}">{escape(clean(run, 60))}</a>' for run in runs[:LINKS] if run in places]
        more = f" and {len(runs) - LINKS} more" if len(runs) > LINKS else ""
        backed = f" <small>Record{'s' * (len(runs) > 1)}: {', '.join(links)}{more}.</small>" if links else ""
        items.append(f"<li>{escape(clean(text, 2000))}{backed}</li>")
    return "<ul>\n" + "\n".join(items) + "\n</ul>"


def records_table(records, places, made) -> str:
    """The records, a row each, with the names that sentences link to."""
    site_of = {record["run_id"]: site.name for site in made.sites for record in site.records}
    rows = []
    for record in records:
        row = store.row(record)
        rows.append([
            clean(record["run_id"], 60), clean(record["file"], 80), site_of.get(record["run_id"], ""),
            clean(record["label"], 60), record["status"], number(row["step_time_s"] and 1000 * row["step_time_s"]),
            number(row["images_per_s"]), percent(row["accuracy"]), clean(record["started"])[:16],
        ])  # fmt: skip
    head = ["record", "file", "machine", "run", "status", "ms a step", "images/s", "accuracy", "started"]
    return table("Records", head, rows, ids=[places[record["run_id"]] for record in records])


def _anchors(records):
    """{run_id: a name that a link can have}."""
    places, taken = {}, set()
    for count, record in enumerate(records):
        name = "record-" + re.sub(r"[^A-Za-z0-9.-]+", "-", record["run_id"])
        places[record["run_id"]] = name if name not in taken else f"{name}-{count}"
        taken.add(places[record["run_id"]])
    return places


# -- notebook -----------------------------------------------------------------------------


def show(made, ladder) -> None:
    """Display the sentences about a ladder, and the records that they link to."""
    from IPython.display import display

    places, said = _anchors(made.records), made.sentences(ladder)
    cited = {run for sentence in said for run in sentence.runs}
    records = [record for record in made.records if record["run_id"] in cited]
    html = sentences(said, places) + records_table(records, places, made)
    display({"text/html": html, "text/plain": "\n".join(report_text.lines(said))}, raw=True)

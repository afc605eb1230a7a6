"""The tables of the source articles beside ours. Their numbers are theirs: other devices, models and data."""

from ..costmodel.published import load
from ..launcher.language import marked
from ..plots.panels import panels
from ..plots.style import clean, percent, said, times
from .figures import ACCURACY, EFFICIENCY
from .pairs import Said, ids

LADDER = "cifar ladder"  # the table that this kit's ladder is like
TEXTS = (  # of that table
    marked("s an epoch"),
    marked("{model} on {data}, seconds an epoch"),
    marked(
        "the CIFAR-10 article that this kit grew out of: its table of configurations and seconds; accuracies from "
        "its text"
    ),
)


def tables() -> dict:
    """{name: table} of recorded/published/scaling.json; {} where the kit was installed without its documents."""
    try:
        return load("scaling")["tables"]
    except FileNotFoundError:
        return {}


def rows(table) -> list:
    """A published table's rows with "speed_up" over its first row, "efficiency" and "accuracy" (None: not given)."""
    first, by_time = table["rows"][0], table["unit"].startswith("s ")
    made = []
    for row in [*table["rows"], *table.get("others", ())]:
        ratio = first["value"] / row["value"] if by_time else row["value"] / first["value"]
        efficiency = ratio * first["devices"] / row["devices"]
        made.append({**row, "speed_up": ratio, "efficiency": efficiency, "accuracy": row.get("accuracy")})
    return made


def ours(sites) -> list:
    """[(site, ladder, numbers)] of each machine: its newest ladder that goes from one device to several."""
    found = []
    for site in sites:
        for ladder in site.ladders:
            if not any(run["config"]["strategy"] == "ddp" for run in ladder.runs):
                continue
            numbers = [row for row in ladder.rows() if row["speed_up"]]
            several = any(row["devices"] > 1 and row["strategy"] == "ddp" for row in numbers)
            if ladder.comparison and several and ladder.comparison.baseline["config"]["nproc_per_node"] == 1:
                found.append((site, ladder, numbers))
                break
    return found


def figure(sites) -> tuple | None:
    """(figure, alt): a published table and the ladder of each machine; None without the table."""
    table = tables().get(LADDER)
    if table is None:
        return None
    unit = said(table["unit"])
    drawn = [
        {**row, "name": f"{row['name']}, {row['value']:g} {unit} ({times(row['speed_up'])})", "kind": "theirs"}
        for row in rows(table)
    ]
    for place, (site, _, numbers) in enumerate(ours(sites)):
        kind = "another machine" if place else "ours"
        drawn += [
            {**row, "name": f"{row['label']}, {site.name} ({times(row['speed_up'])})", "kind": kind}
            for row in numbers
            if row["efficiency"]
        ]
    notes = [
        " ".join(
            [
                marked("Efficiency: speed-up (in brackets) divided by the devices, so 100% is ideal."),
                marked(f"Theirs: {table['title']}; {table['source']}; divided here."),
                marked("Other devices, model and data."),
            ]
        )
    ]
    return panels(marked("Beside a published ladder"), table["title"], drawn, (EFFICIENCY, ACCURACY), notes)


def sentences(sites) -> list:
    """What the published table says, and what the ladders of these machines say beside it."""
    table = tables().get(LADDER)
    if table is None:
        return []
    first, *others = rows(table)
    best = max(others, key=lambda row: row["speed_up"])
    told = (
        f"Theirs ({clean(table['source'], 200)}): {best['name']} was {times(best['speed_up'])} as fast as "
        f"{first['name']}, an efficiency of {percent(best['efficiency'])}"
    )
    if None not in (first["accuracy"], best["accuracy"]):
        accuracies = [percent(row["accuracy"]) for row in (first, best)]
        told = f"{told}; accuracy {accuracies[0]} on {first['name']}, {accuracies[1]} on {best['name']}"
    said = [Said(told + ".", ())]
    for row in others:
        if row["speed_up"] < 1:
            told = f"Theirs: {row['name']} was slower than {first['name']} ({times(row['speed_up'])})."
            said.append(Said(told, ()))
    for site, ladder, numbers in ours(sites):
        ddp = [row for row in numbers if row["strategy"] == "ddp" and row["devices"] > 1 and row["efficiency"]]
        if ddp:
            top = max(ddp, key=lambda row: row["speed_up"])
            record = next(record for record in ladder.records if record["run_id"] == top["run_id"])
            speed_up, efficiency = times(top["speed_up"]), percent(top["efficiency"])
            text = f"On {site.name}: {clean(top['label'], 60)} {speed_up}, an efficiency of {efficiency}"
            accuracy = f"accuracy {percent(top['accuracy'])}"
            text = text if top["accuracy"] is None else f"{text}; {accuracy}"
            said.append(Said(text + ".", ids(record, ladder.comparison.baseline)))
    return said

"""The tables of the source articles beside ours. Their numbers are theirs: other devices, models and data."""

from ..costmodel.published import load
from ..language import _
from ..plots.panels import panels
from ..plots.style import percent, readable, times

LADDER = "cifar ladder"  # the table that this kit's ladder is like


def tables() -> dict:
    """{name: table} of recorded/published/scaling.json."""
    return load("scaling")["tables"]


def rows(table) -> list:
    """A published table's rows with "speed_up" over its first row, "efficiency" and "accuracy" (None: not given)."""
    first, by_time = table["rows"][0], table["unit"].startswith("s ")
    made = []
    for row in table["rows"] + table.get("others", []):
        ratio = first["value"] / row["value"] if by_time else row["value"] / first["value"]
        efficiency = ratio * first["devices"] / row["devices"]
        made.append({**row, "speed_up": ratio, "efficiency": efficiency, "accuracy": row.get("accuracy")})
    return made


def ours(machine) -> list:
    """Rows of the machine's newest ladder that goes from one device to several; [] without one."""
    for ladder in machine.ladders:
        found = [row for row in ladder.rows() if row["efficiency"]]
        if found and found[0]["devices"] == 1 and any(row["devices"] > 1 and row["strategy"] == "ddp" for row in found):
            return found
    return []


@readable()
def figure(machines) -> tuple:
    """(figure, alt): a published table and the ladder of each machine."""
    title, unit = _("ResNet-50 on CIFAR-10, seconds an epoch"), _("s an epoch")
    source = _("the CIFAR-10 article that this kit grew out of: its table of configurations and seconds")
    drawn = [
        {**row, "name": f"{row['name']}, {row['value']:g} {unit} ({times(row['speed_up'])})", "kind": "theirs"}
        for row in rows(tables()[LADDER])
    ]
    for machine in machines:
        kind = "ours" if machine is machines[0] else "another machine"
        named = ((f"{row['label']}, {machine.name} ({times(row['speed_up'])})", row) for row in ours(machine))
        drawn += [{**row, "name": name, "kind": kind} for name, row in named]
    columns = (("efficiency", _("efficiency"), percent, 1),)  # no accuracies: of other data they do not compare
    notes = (
        _("Efficiency: speed-up (in brackets) divided by the devices, so 100% is ideal."),
        _("Theirs: {title}; {source}; divided here.").format(title=title, source=source),
        _("Other devices, model and data."),
    )
    return panels(_("Beside a published ladder"), title, drawn, columns, [" ".join(notes)])

"""The figures of a report, each made from ladders: (figure, alt) pairs."""

from .. import plots
from ..launcher.language import marked
from ..plots.panels import panels
from ..plots.style import clean, number, percent, times
from ..records.words import samples_of
from .causes import break_even
from .sentences import curves, shared

MOST = 24  # rows of a figure
SPEED_UP = ("speed_up", "speed-up", times, 1)  # these are columns of `panels`
EFFICIENCY = ("efficiency", marked("efficiency"), percent, 1)
ACCURACY = ("accuracy", "accuracy", percent, None)


def of_ladder(ladder, target) -> list:
    """The figures of one ladder, as far as its records have the numbers for them; the speed-up comes first."""
    found = []
    if ladder.comparison and len(ladder.records) > 1:
        found += [plots.speed_up(ladder.comparison), efficiency_and_memory(ladder)]
    groups = curves(ladder)
    if groups:
        found.append(plots.time_to_accuracy(groups, target))
    return found + compile_cost([ladder])


def efficiency_and_memory(ladder) -> tuple:
    """Efficiency, peak memory of a process and start-up of each run."""
    rows = []
    for row in ladder.rows()[:MOST]:
        memory = row["peak_memory_bytes"]
        start = (row["total_s"] or 0) - (row.get("steps_s") or 0) - (row.get("evaluation_s") or 0)
        rows.append(
            {
                "name": plots.name(row),
                "kind": "ours",
                "efficiency": row["efficiency"],
                "memory": memory and memory / 1e6,
                "accuracy": row["accuracy"],
                "start": start if row["total_s"] and row.get("steps_s") else None,
            }
        )
    memory, start = marked("MB a process"), marked("s besides steps")
    notes = [
        "Efficiency: speed-up divided by the devices; none where a device computes in another way than the baseline's.",
        "MB: peak of the process that needed most. Besides steps: start, data and warm-up.",
    ]
    columns = (EFFICIENCY, ("memory", memory, number, None), ("start", start, number, None), ACCURACY)
    what = clean(plots.settings(ladder.records)[0], 80)
    return panels(f"Efficiency and memory: {what}", _where([ladder]), rows, columns, notes)


def compile_cost(ladders) -> list:
    """What compiling cost in each run that compiled, and after how many steps it is won back; [] without one."""
    records = [record for ladder in reversed(ladders) for record in ladder.records]
    found = ((record, break_even(record, records)) for ladder in ladders for record in ladder.records)
    rows = [{"name": f"{record['label']} ({cost['plan']})", "kind": "ours", **cost} for record, cost in found if cost]
    if not rows:
        return []
    columns = (
        ("compile_s", marked("s to compile"), number, None),
        ("gain", "speed-up", times, 1),
        ("steps", marked("steps until it pays"), _count, None),
    )
    notes = ["Speed-up: of a step over eager's. Without a number of steps it is not faster, and never pays."]
    return [panels(marked("What compiling costs"), _where(ladders), rows[:MOST], columns, notes)]


def machines(sites, first="ours") -> list:
    """The runs that several machines have made, each beside the baseline of its own machine; [] if there are none.

    Args:
        first: whose the runs of the first machine are (a key of `panels.LOOKS`).
    """
    rows, kinds = [], (first, "another machine")
    named = dict(zip(kinds, (site.name for site in sites), strict=True)) if len(sites) == 2 else None
    for label, _, seen in shared(sites):
        for place, (site, row, *_) in enumerate(seen):
            speed = row["speed_up"], row["speed_up_low"], row["speed_up_high"]
            rows.append(
                {
                    "name": label if named else f"{label}, {site.name}",
                    "kind": kinds[place > 0],
                    "speed_up": speed,
                    "samples_are": row["samples_are"],
                    "images_per_s": row["images_per_s"],
                    "efficiency": row["efficiency"],
                    "accuracy": row["accuracy"],
                }
            )
    if not rows:
        return []
    samples = samples_of(rows)
    columns = (SPEED_UP, EFFICIENCY, ACCURACY, ("images_per_s", f"{samples}/s", number, None))
    notes = [f"Speed-up: {samples}/s over the baseline of the same machine; whisker: its 95% interval."]
    how = clean(plots.style.said(" and ").join(plots.style.said(site.name) for site in sites))
    how = f"recorded: {how}" if first == "recorded" else how
    return [panels(marked("Machines side by side"), how, rows[:MOST], columns, notes, named)]


def _count(value):
    return "–" if value is None else f"{value:,}"


def _where(ladders):
    names = dict.fromkeys(ladder.name for ladder in ladders)
    named = clean(next(iter(names)), 60) if len(names) == 1 else f"{len(names)} comparisons"
    return f"{plots.style.said(ladders[0].machine)} · {plots.style.said(named)}"

"""The figures of a report, each made from ladders: (figure, alt) pairs."""

from .. import plots
from ..language import _
from ..plots.panels import panels
from ..plots.style import clean, number, percent, readable, times
from ..records.speedup import SPEED_UP
from ..records.words import samples_of
from .causes import break_even
from .ladders import training

MOST = 24  # rows of a figure


def of_ladder(ladder, target) -> list:
    """The figures of one ladder, as far as its records have the numbers for them; the speed-up comes first."""
    found = [plots.speed_up(ladder.comparison)] if ladder.comparison and len(ladder.records) > 1 else []
    if ladder.curves():
        found.append(plots.time_to_accuracy(ladder.curves(), target))
    return found + compile_cost([ladder])


@readable()
def compile_cost(ladders) -> list:
    """What compiling cost in each run that compiled, and after how many steps it is won back; [] without one."""
    records = [record for ladder in reversed(ladders) for record in ladder.records]
    found = ((record, break_even(record, records)) for ladder in ladders for record in ladder.records)
    rows = [{"name": f"{record['label']} ({cost['plan']})", "kind": "ours", **cost} for record, cost in found if cost]
    if not rows:
        return []
    columns = (
        ("compile_s", _("s to tune and compile"), number, None),
        ("gain", _("speed-up"), times, 1),
        ("steps", _("steps until it pays"), lambda steps: "–" if steps is None else f"{steps:,}", None),
    )
    notes = [_("Speed-up: of a step over eager's. Without a number of steps it is not faster, and never pays.")]
    names = list(dict.fromkeys(clean(ladder.name, 60) for ladder in ladders))
    how = names[0] if len(names) == 1 else _("{names} comparisons").format(names=len(names))
    return [panels(_("What compiling costs"), how, rows[:MOST], columns, notes)]


@readable()
def machines(found, first="ours") -> list:
    """The runs that several machines have made, each beside the baseline of its own machine; [] if there are none.

    Args:
        found: machines of a report. first: whose the runs of the first one are (a key of `panels.LOOKS`).
    """
    made = {}  # of each training, the newest run of each machine
    for machine in found:
        for ladder in machine.ladders:
            for row, record in zip(ladder.rows(), ladder.records, strict=True) if ladder.comparison else ():
                if row["speed_up"]:
                    made.setdefault(training(record), {}).setdefault(machine.name, row)
    rows = [
        row
        | {"name": f"{row['label']}, {name}", "kind": first if name == found[0].name else "another machine"}
        | {"speed_up": tuple(row[key] for key in SPEED_UP)}
        for of_training in made.values()
        for name, row in of_training.items()
        if len(of_training) > 1
    ]
    if not rows:
        return []
    samples = samples_of(rows)
    columns = (
        ("speed_up", _("speed-up"), times, 1),
        ("efficiency", _("efficiency"), percent, 1),
        ("accuracy", _("accuracy"), percent, None),
        ("images_per_s", f"{samples}/s", number, None),
    )
    note = _("Speed-up: {samples}/s over the baseline of the same machine; whisker: 95% interval of the ratio.")
    how = clean(_(" and ").join(machine.name for machine in found))
    how = _("recorded: {how}").format(how=how) if first == "recorded" else how
    return [panels(_("Machines side by side"), how, rows[:MOST], columns, [note.format(samples=samples)])]

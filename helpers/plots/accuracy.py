"""How long several seeds of each label take to reach an accuracy.

A speed that counts is one that reaches the same accuracy sooner.
"""

from ..language import _
from ..records.words import number, percent, samples_of, times
from . import seeds
from .panels import panels
from .style import readable


@readable()
def time_to_accuracy(groups, target) -> tuple:
    """Seconds of training until `target`, the speed-up in that beside that of a step, and accuracy.

    Args:
        groups: {label: [records, one a seed]}; the others are compared with the first.
        target: a test accuracy, a share of one.

    Raises:
        ValueError: no record has a curve, or `target` is no share of one.
    """
    rows = seeds.rows(groups, target)
    goal, samples, notes = percent(target), samples_of(rows), dict.fromkeys(sum((row["notes"] for row in rows), []))
    marks = {note: "*" * count for count, note in enumerate(notes, start=1)}
    late = [row for row in rows if row["reached"] < row["seeds"]]
    some = _(" ({reached} of {seeds} seeds)")
    cells = [
        {
            "name": _(row["label"])
            + " ".join(marks[note] for note in row["notes"])
            + some.format(**row) * (row in late),
            "kind": "ours",
            "seconds": (row["seconds"], row["times"]),
            "speed_up_to_target": row["speed_up_to_target"],
            "speed_up": row["speed_up"],
            "accuracy": (row["accuracy"], [curve[-1]["accuracy"] for curve in row["curves"]]),
        }
        for row in rows
    ]
    columns = (
        ("seconds", _("seconds to {target}").format(target=goal), number, None),
        ("speed_up_to_target", _("speed-up in time"), times, 1),
        ("speed_up", _("speed-up in {samples}/s").format(samples=samples), times, 1),
        ("accuracy", _("final accuracy"), percent, target),
    )
    notes = [
        _("Circle: a seed; bar: the median of the seconds, the mean of the accuracies."),
        _("Speed-ups are over {label} (1×).").format(label=_(rows[0]["label"])),
    ]
    if late:
        notes.append(_("In brackets: the seeds that reached it."))
        notes.append(_("A seed that never reached it counts as slower than all others."))
    notes = [" ".join(notes), *(f"{mark} {_(note)}" for note, mark in marks.items()), seeds.left_out(rows)]
    title = _("Time to {target} test accuracy: {trained}").format(target=goal, trained=seeds.trained(rows))
    return panels(title, seeds.machine(rows), cells, columns, notes)

"""Unified diffs whose hunks name the step that they belong to."""

from .blame import Mark, runs
from .steps import STEPS


def diff(migration, step=None, context=3):
    """See `Migration.diff`."""
    marks = migration.marks
    if step is not None:
        if step not in range(1, len(STEPS) + 1):
            raise ValueError(f"step is {step!r}; the steps are 1 to {len(STEPS)}")
        # What other steps wrote is context, what they removed is gone.
        marks = [
            mark if mark.step in (None, step) else Mark(" ", mark.text)
            for mark in marks
            if mark.step in (None, step) or mark.sign == "+"
        ]
    hunks = [_hunk(marks, *hunk) for hunk in _hunks(marks, context)]
    name = migration.name + ("\t" if " " in migration.name else "")  # as git marks the end of such a name
    return "".join([f"--- {name}\n+++ {name}\n", *hunks]) if hunks else ""


def _hunks(marks, context):
    """(start, end, steps) of every hunk: one step each, unless less than two lines lie between steps."""
    groups = []  # [start, end, steps] without context
    for start, end in runs(marks):
        step = marks[start].step
        gap = start - groups[-1][1] if groups else None
        if groups and (gap < 2 or (groups[-1][2] == {step} and gap <= 2 * context)):
            groups[-1][1] = end
            groups[-1][2].add(step)
        else:
            groups.append([start, end, {step}])
    for n, (start, end, steps) in enumerate(groups):
        # As much context before as after, or patch takes the hunk for one at an end of the file.
        before = (start - groups[n - 1][1]) // 2 if n else context
        after = (groups[n + 1][0] - end) // 2 if n + 1 < len(groups) else context
        width = min(context, before, after)
        yield max(start - width, 0), min(end + width, len(marks)), steps


def _hunk(marks, start, end, steps):
    places = []
    for sign in "+-":  # the lines of the source are those without +
        at, size = (sum(mark.sign != sign for mark in part) for part in (marks[:start], marks[start:end]))
        places.append(f"{at + (size > 0)},{size}")
    body = (
        mark.sign + mark.text + "\n\\ No newline at end of file\n" * (mark.text[-1:] != "\n")
        for mark in marks[start:end]
    )
    tag = ", ".join(str(STEPS[step - 1]) for step in sorted(steps))
    return f"@@ -{places[0]} +{places[1]} @@ {tag}\n{''.join(body)}"

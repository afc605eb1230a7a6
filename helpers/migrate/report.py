"""The report of a migration, as text."""

import textwrap

from .steps import STEPS


def report(migration):
    """Lines are those of the result; those of the source follow where they differ."""
    parts = [_head(migration)]
    if migration.changes:
        parts += ["", "Changed"]
        for step in migration.steps:
            added = [change.line for change in migration.changes if change.step == step and not change.removed]
            removed = sum(change.step == step and change.removed for change in migration.changes)
            where = f" (line{'s' * (len(added) != 1)} {_ranges(added)})" if added else ""
            parts.append(f"  {STEPS[step - 1]}: +{len(added)} −{removed}{where}")
    for kind, title in (("left", "Seen and not changed"), ("choose", "Only you can choose")):
        notes = [note for note in migration.notes if note.kind == kind]
        if notes:
            parts += ["", title]
        for note in notes:
            parts.append(f"  {_place(migration, note)}{note.text}")
            parts += textwrap.wrap(note.advice, 100, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(parts) + "\n"


def _head(migration):
    if not migration.changed:
        return f"{migration.name}: nothing to change for NPUs"
    count, steps = sum(not change.removed for change in migration.changes), len(migration.steps)
    gone = sum(change.removed for change in migration.changes)
    return (
        f"{migration.name}: {count} line{'s' * (count != 1)} written and {gone} taken out "
        f"in {steps} step{'s' * (steps != 1)} ({migration.style} style)"
    )


def _place(migration, note):
    if note.line is None:
        return ""
    more = f", {_ranges(note.lines[1:])}" if len(note.lines) > 1 else ""
    was = f" (line {note.source_line} of the source)" if note.source_line not in (None, note.line) else ""
    return f"{migration.name}:{note.line}{more}{was}: "


def _ranges(lines):
    """"3, 5-7": the lines, neighbours together."""
    runs = []
    for line in sorted(set(lines)):
        if runs and line == runs[-1][1] + 1:
            runs[-1][1] = line
        else:
            runs.append([line, line])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)

"""The report of a migration, as text."""

import textwrap

from helpers.launcher.language import local

from .steps import STEPS


def report(migration):
    """Lines are those of the result; those of the source follow where they differ."""
    parts = [_head(migration)]
    if migration.changes:
        parts += ["", local("Changed")]
        for step in migration.steps:
            added = [change.line for change in migration.changes if change.step == step and not change.removed]
            removed = sum(change.step == step and change.removed for change in migration.changes)
            where = local("line {lines}", lines=_ranges(added)) if len(added) == 1 else ""
            where = local("lines {lines}", lines=_ranges(added)) if len(added) > 1 else where
            parts.append(f"  {STEPS[step - 1]}: +{len(added)} −{removed}{f' ({where})' if where else ''}")
    for kind, title in (("left", local("Seen and not changed")), ("choose", local("Only you can choose"))):
        notes = [note for note in migration.notes if note.kind == kind]
        if notes:
            parts += ["", title]
        for note in notes:
            parts.append(f"  {_place(migration, note)}{local(note.text)}")
            parts += textwrap.wrap(local(note.advice), 100, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(parts) + "\n"


def _head(migration):
    if not migration.changed:
        return local("{name!s}: nothing to change for NPUs", name=migration.name)
    count, steps = sum(not change.removed for change in migration.changes), len(migration.steps)
    gone = sum(change.removed for change in migration.changes)
    return local(
        "{name!s}: {count} line{s} written and {gone} taken out in {steps} step{s_b} ({style} style)",
        name=migration.name,
        count=count,
        s="s" * (count != 1),
        gone=gone,
        steps=steps,
        s_b="s" * (steps != 1),
        style=migration.style,
    )


def _place(migration, note):
    if note.line is None:
        return ""
    more = f", {_ranges(note.lines[1:])}" if len(note.lines) > 1 else ""
    was = ""
    if note.source_line not in (None, note.line):
        was = " " + local("(line {line} of the source)", line=note.source_line)
    return f"{migration.name}:{note.line}{more}{was}: "


def _ranges(lines):
    """ "3, 5-7": the lines, neighbours together."""
    runs = []
    for line in sorted(set(lines)):
        if runs and line == runs[-1][1] + 1:
            runs[-1][1] = line
        else:
            runs.append([line, line])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)

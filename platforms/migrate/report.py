"""The report of a migration, as text in the reader's language."""

import textwrap

from helpers.language import _, shown

from .steps import STEPS


def report(migration):
    """Lines are those of the result; those of the source follow where they differ."""
    parts = [_head(migration)]
    if migration.changes:
        parts += ["", _("Changed")]
        for step in migration.steps:
            added = [change.line for change in migration.changes if change.step == step and not change.removed]
            removed = sum(change.step == step and change.removed for change in migration.changes)
            where = ""
            if added:
                where = _("line {lines}") if len(added) == 1 else _("lines {lines}")
                where = f" ({where.format(lines=_ranges(added))})"
            parts.append(f"  {STEPS[step - 1]}: +{len(added)} −{removed}{where}")
    for kind, title in (("left", _("Seen and not changed")), ("choose", _("Only you can choose"))):
        notes = [note for note in migration.notes if note.kind == kind]
        parts += ["", title] if notes else []
        for note in notes:
            parts.append(f"  {_place(migration, note)}{shown(note.text)}")
            parts += textwrap.wrap(shown(note.advice), 100, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(parts) + "\n"


def _head(migration):
    if not migration.changed:
        return _("{name}: nothing to change for NPUs").format(name=migration.name)
    gone, steps = sum(change.removed for change in migration.changes), len(migration.steps)
    count = len(migration.changes) - gone
    words = {"name": migration.name, "count": count, "gone": gone, "steps": steps, "style": migration.style}
    return _("{name}: {count} line{s} written and {gone} taken out in {steps} step{s_b} ({style} style)").format(
        s="s" * (count != 1), s_b="s" * (steps != 1), **words
    )


def _place(migration, note):
    if note.line is None:
        return ""
    more = f", {_ranges(note.lines[1:])}" if len(note.lines) > 1 else ""
    was = ""
    if note.source_line not in (None, note.line):
        was = " " + _("(line {line} of the source)").format(line=note.source_line)
    return f"{migration.name}:{note.line}{more}{was}: "


def _ranges(lines):
    runs = []
    for line in sorted(lines):
        if runs and line == runs[-1][1] + 1:
            runs[-1][1] = line
        else:
            runs.append([line, line])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)

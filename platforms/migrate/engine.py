"""The migration: runs the passes on each other's output and remembers who changed what."""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from . import blame
from .notes import Notes
from .report import report
from .script import Script
from .tree import MigrationError, Unclear, parse, read

STYLES = ("article", "modern")


@dataclass(frozen=True)
class Change:
    """A line that a step wrote (`line` of the result) or took out (`line` of the source); both from 1."""

    step: int
    line: int
    text: str
    removed: bool = False


@dataclass(frozen=True)
class Migration:
    """A migrated script: `source` and `result` (text), `changes`, `notes`, and ways to show them."""

    name: str
    source: str
    result: str
    style: str
    changes: tuple
    notes: tuple
    marks: tuple = field(repr=False, compare=False, default=())

    @property
    def changed(self):
        """Whether the result differs from the source."""
        return self.result != self.source

    @property
    def steps(self):
        """The numbers of the steps that changed something, sorted."""
        return sorted({change.step for change in self.changes})

    def diff(self, step=None, context=3):
        """A unified diff, every hunk tagged with its step; "" where nothing changed.

        The whole diff turns the source into the result (`patch -p0`, `git apply -p0`). With `step`,
        only the hunks of this step; what the others wrote is context.
        """
        return blame.diff(self, step, context)

    def report(self):
        """What was changed, what was seen and left, and what only you can choose, as text."""
        return report(self)


def migrate(path_or_source, *, style="article", name=None):
    """Migrate a script for CUDA to Ascend NPUs; nothing is written anywhere.

    `path_or_source` is a path (or a text of one line that names a file or ends in ".py"), or the text
    of a script. `style` is "article" (the sixteen steps with apex) or "modern" (torch.amp, torchrun).
    Raises MigrationError (a ValueError) with file and line for what does not parse, ValueError for an
    unknown `style`, OSError for a file that cannot be read.
    """
    if style not in STYLES:
        raise ValueError(f"style is {style!r}; it must be one of {', '.join(STYLES)}")
    text = path_or_source
    if isinstance(text, str) and ("\n" in text or not (text.endswith((".py", ".ipynb")) or os.path.isfile(text))):
        name = name or "<script>"
    else:
        name = name or os.fspath(path_or_source)
        text = read(Path(path_or_source), name)
    if name.endswith(".ipynb") or text.lstrip().startswith('{"') and '"cells"' in text:
        advice = "migrate its script (jupyter nbconvert --to script NAME.ipynb), and copy the changes"
        raise MigrationError(name, None, f"this is a notebook, and migrate reads scripts: {advice}")
    bom = "\ufeff" * text.startswith("\ufeff")
    parse(text[len(bom) :], name)
    lines, notes = blame.Blame(text[len(bom) :]), Notes()
    try:
        _run(name, style, lines, notes)
    except RecursionError:
        reason = "expressions are nested too deeply; split the longest ones and migrate again"
        raise MigrationError(name, None, reason) from None
    marks = lines.marks()
    if bom and marks:
        marks[0] = replace(marks[0], text=bom + marks[0].text)
    found = notes.final(lines.origins())
    return Migration(name, text, bom + lines.text, style, _changes(marks), found, tuple(marks))


def _run(name, style, lines, notes):
    from .passes import PASSES

    script = None
    for group in PASSES:
        script = script or Script(lines.text, name, style, notes)
        for script.step, one in group:
            try:
                one(script)
            except Unclear as unclear:
                script.left(unclear.node, unclear.text, unclear.advice)
                script.forget()
        if regions := script.edited():
            notes.move(lines.update(regions))
            script = None


def _changes(marks):
    made, old, new = [], 0, 0
    for mark in marks:
        old, new, removed = old + (mark.sign != "+"), new + (mark.sign != "-"), mark.sign == "-"
        if mark.step is not None:
            made.append(Change(mark.step, old if removed else new, mark.text.rstrip("\r\n"), removed))
    return tuple(sorted(made, key=lambda change: (change.step, change.removed, change.line)))

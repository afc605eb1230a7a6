"""The migration: runs the passes on each other's output and remembers who changed what."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from helpers.launcher.language import marked

from . import hunks
from .blame import Blame
from .notes import Notes
from .report import report
from .script import Script
from .source import MigrationError, decode, parse

STYLES = ("article", "modern")
ROUNDS = 5  # for the edits of one group of passes that lie inside each other


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
    encoding: str = "utf-8"
    blame: Blame = field(repr=False, compare=False, default=None)

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
        return hunks.diff(self, step, context)

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
    text, name, encoding = _read(path_or_source, name)
    if name.endswith(".ipynb") or text.lstrip().startswith('{"') and '"cells"' in text:
        advice = marked("migrate its script (jupyter nbconvert --to script NAME.ipynb), and copy the changes")
        raise MigrationError(name, None, f"this is a notebook, and migrate reads scripts: {advice}")
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    parse(text[len(mark) :], name)
    blame, notes = Blame(text[len(mark) :]), Notes()
    try:
        result = _run(text[len(mark) :], name, style, blame, notes)
    except RecursionError:
        reason = "expressions are nested too deeply; split the longest ones and migrate again"
        raise MigrationError(name, None, reason) from None
    if mark and blame.source:
        blame.source[:1] = [mark + line for line in blame.source[:1]]
        blame.lines[0].text = mark + blame.lines[0].text
    made = notes.final(blame.origins())
    return Migration(name, text, mark + result, style, _changes(blame), made, encoding, blame)


def _read(path_or_source, name):
    if isinstance(path_or_source, str) and not _is_path(path_or_source):
        return path_or_source, name or "<script>", "utf-8"
    name = name or os.fspath(path_or_source)
    text, encoding = decode(Path(path_or_source).read_bytes(), name)
    return text, name, encoding


def _is_path(text):
    if "\n" in text or not text.strip():
        return False
    return text.endswith((".py", ".ipynb")) or os.path.isfile(text)


def _run(text, name, style, blame, notes):
    from .passes import PASSES

    script = None
    for group in PASSES:
        for again in range(ROUNDS):
            script = script or Script(text, name, style, notes)
            for one in group:
                one(script)
            edited, swallowed = script.edited(), script.swallowed
            for step, after, places in edited:
                parse(after, f"the result of step {step}")
                notes.move(blame.update(after, step, places))
                text, script = after, None
            if not swallowed:
                break
            assert again < ROUNDS - 1, f"edits of {group} lie inside each other in every round"
    return text


def _changes(blame):
    kept = {line.origin for line in blame.lines}
    added = [
        Change(line.step, n, line.text.rstrip("\r\n")) for n, line in enumerate(blame.lines, 1) if line.origin is None
    ]
    gone = [
        Change(blame.removed_by[place], place + 1, text.rstrip("\r\n"), removed=True)
        for place, text in enumerate(blame.source)
        if place not in kept
    ]
    return tuple(sorted(added + gone, key=lambda change: (change.step, change.removed, change.line)))

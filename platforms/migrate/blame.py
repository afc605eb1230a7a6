"""Which step wrote which line: an edit script from the source to the result, and unified diffs that name steps."""

from dataclasses import dataclass
from difflib import SequenceMatcher

from .steps import STEPS
from .tree import lines_of


@dataclass
class Line:
    """A line of the present text: its place in the source while untouched, else the step that wrote it."""

    text: str
    origin: int | None
    step: int | None = None
    replaces: tuple = ()  # places in the source of the lines that this one stands for


@dataclass(frozen=True)
class Mark:
    """A line of the edit script: `sign` is " ", "-" or "+", `step` is None for " "."""

    sign: str
    text: str
    step: int | None = None


class Blame:
    """The present text as lines that know where they come from."""

    def __init__(self, source):
        self.source = lines_of(source)
        self.lines = [Line(text, place) for place, text in enumerate(self.source)]
        self.removed_by = {}  # place in the source -> the step that took the line out

    @property
    def text(self):
        """The present text."""
        return "".join(line.text for line in self.lines)

    def update(self, regions):
        """Change the lines of `regions` (see edits.regions); returns the new place of every line before."""
        made, where, at = [], [], 0
        for first, last, versions in regions:
            where += range(len(made), len(made) + first - at)
            made += self.lines[at:first]
            lines, moved = self.lines[first:last], list(range(last - first))
            for step, text in versions:
                lines, moved = self._rewrite(lines, lines_of(text), step, moved)
            where += [max(len(made) + place, 0) for place in moved]
            made += lines
            at = last
        where += range(len(made), len(made) + len(self.lines) - at)
        self.lines = made + self.lines[at:]
        return where

    def _rewrite(self, old, after, step, places):
        made, where = [], {}
        before = [line.text for line in old]
        for kind, i1, i2, j1, j2 in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
            for place in range(i1, i2):
                where[place] = j1 + place - i1 if kind == "equal" else min(j1 + place - i1, j2 - 1)
            made += old[i1:i2] if kind == "equal" else self._replace(old[i1:i2], after[j1:j2], step)
        return made, [where.get(place, place) for place in places]

    def _replace(self, old, new, step):
        gone = [line.replaces if line.origin is None else (line.origin,) for line in old]
        self.removed_by |= dict.fromkeys(sum(gone, ()), step)
        if len(new) != len(gone):
            gone = [sum(gone, ())] + [()] * (len(new) - 1)
        return [Line(text, None, step, share) for text, share in zip(new, gone, strict=False)]

    def origins(self):
        """For every line of the present text its place in the source, or None."""
        return [line.origin if line.origin is not None else next(iter(line.replaces), None) for line in self.lines]

    def marks(self):
        """The edit script from the source to the present text, steps kept apart where lines allow."""
        made, at = [], 0
        kept = {line.origin for line in self.lines}

        def removed(until):
            return [Mark("-", self.source[n], self.removed_by[n]) for n in range(at, until) if n not in kept]

        for line in self.lines:
            until = max(line.replaces, default=-1) + 1 if line.origin is None else line.origin
            made += removed(until)
            at = max(at, until)
            if line.origin is None:
                made.append(Mark("+", line.text, line.step))
            else:
                made.append(Mark(" ", line.text))
                at = line.origin + 1
        made += removed(len(self.source))
        for start, end in runs(made):
            made[start:end] = sorted(made[start:end], key=lambda mark: mark.sign == "+")
        return made


def runs(marks):
    """(start, end) of the stretches of neighbouring marks of one step; context is no stretch."""
    start = 0
    for at in range(1, len(marks) + 1):
        if at == len(marks) or marks[at].step != marks[start].step:
            if marks[start].step is not None:
                yield start, at
            start = at


# Unified diffs


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

"""Unified diffs whose hunks name the step that they belong to."""

from dataclasses import dataclass

from .steps import STEPS


@dataclass(frozen=True)
class Mark:
    """A line of the edit script: `sign` is " ", "-" or "+", `step` is None for " "."""

    sign: str
    text: str
    step: int | None = None


def marks(blame):
    """The edit script from the source to the present text, steps kept apart where lines allow."""
    made, at = [], 0
    kept = {line.origin for line in blame.lines if line.origin is not None}

    def removed(until):
        nonlocal at
        while at < until:
            if at not in kept:
                yield Mark("-", blame.source[at], blame.removed_by[at])
            at += 1

    for line in blame.lines:
        if line.origin is None:
            made += removed(max(line.replaces, default=-1) + 1)
            made.append(Mark("+", line.text, line.step))
        else:
            made += removed(line.origin)
            made.append(Mark(" ", line.text))
            at = line.origin + 1
    made += removed(len(blame.source))
    return _minus_first(made)


def _runs(made):
    """(start, end) of the stretches of neighbouring marks of one step; context is no stretch."""
    start = 0
    for at in range(1, len(made) + 1):
        if at == len(made) or made[at].step != made[start].step:
            if made[start].step is not None:
                yield start, at
            start = at


def _minus_first(made):
    for start, end in _runs(made):
        made[start:end] = sorted(made[start:end], key=lambda mark: mark.sign == "+")
    return made


def _of_step(made, step):
    """The marks of one step alone; what other steps wrote is context, what they removed is gone."""
    for mark in made:
        if mark.step in (None, step):
            yield mark
        elif mark.sign == "+":
            yield Mark(" ", mark.text)


def diff(migration, step=None, context=3):
    """See `Migration.diff`."""
    made = marks(migration.blame)
    if step is not None:
        if step not in range(1, len(STEPS) + 1):
            raise ValueError(f"step is {step!r}; the steps are 1 to {len(STEPS)}")
        made = list(_of_step(made, step))
    hunks = _hunks(made, context)
    if not hunks:
        return ""
    name = migration.name + ("\t" if " " in migration.name else "")  # as git marks the end of such a name
    return f"--- {name}\n+++ {name}\n" + "".join(_hunk(made, *hunk) for hunk in hunks)


def _hunks(made, context):
    """(start, end, steps) of every hunk: one step each, unless less than two lines lie between steps."""
    groups = []  # [start, end, steps] without context
    for start, end in _runs(made):
        step = made[start].step
        gap = start - groups[-1][1] if groups else None
        if groups and (gap < 2 or (groups[-1][2] == [step] and gap <= 2 * context)):
            groups[-1][1] = end
            groups[-1][2] += [step] if step not in groups[-1][2] else []
        else:
            groups.append([start, end, [step]])
    hunks = []
    for n, (start, end, steps) in enumerate(groups):
        # As much context before as after, or patch takes the hunk for one at an end of the file.
        before = (start - groups[n - 1][1]) // 2 if n else context
        after = (groups[n + 1][0] - end) // 2 if n + 1 < len(groups) else context
        width = min(context, before, after)
        hunks.append((max(start - width, 0), min(end + width, len(made)), steps))
    return hunks


def _hunk(made, start, end, steps):
    old, new = (sum(mark.sign != sign for mark in made[:start]) for sign in "+-")
    marks_ = made[start:end]
    sizes = [sum(mark.sign != sign for mark in marks_) for sign in "+-"]
    places = [f"{at + (size > 0)},{size}" for at, size in zip((old, new), sizes, strict=True)]
    tag = ", ".join(str(STEPS[step - 1]) for step in sorted(steps))
    body = "".join(
        mark.sign + mark.text + ("" if mark.text.endswith("\n") else "\n\\ No newline at end of file\n")
        for mark in marks_
    )
    return f"@@ -{places[0]} +{places[1]} @@ {tag}\n{body}"

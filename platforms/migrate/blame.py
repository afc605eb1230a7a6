"""Which step wrote which line: an edit script from the source to the result, kept line by line."""

import bisect
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import accumulate

from .source import lines_of


@dataclass
class Line:
    """A line of the present text: its place in the source while untouched, else the step that wrote it."""

    text: str
    origin: int | None
    step: int | None = None
    replaces: tuple = ()  # places in the source of the lines that this one stands for


class Blame:
    """The present text as lines that know where they come from."""

    def __init__(self, source):
        self.source = lines_of(source)
        self.lines = [Line(text, place) for place, text in enumerate(self.source)]
        self.removed_by = {}  # place in the source -> the step that took the line out

    def update(self, text, step, places):
        """Take over `text`, which `step` made of the present text; returns where(place) for notes.

        `places` are the offsets of what differs, (start, end) before and (start, end) after.
        """
        after = lines_of(text)
        before = [line.text for line in self.lines]
        moves, made = [], []
        for kind, i1, i2, j1, j2 in _opcodes(before, after, places):
            if kind == "equal":
                made += self.lines[i1:i2]
            else:
                made += self._replace(self.lines[i1:i2], after[j1:j2], step)
            moves.append((i1, i2, j1, j2, kind))
        self.lines = made
        return _mover(moves, len(after))

    def _replace(self, old, new, step):
        gone = [_sources(line) for line in old]
        for place in sum(gone, ()):
            self.removed_by[place] = step
        if not new:
            return []
        if len(new) == len(gone):
            shares = gone
        else:
            shares = [sum(gone, ())] + [()] * (len(new) - 1)
        return [Line(text, None, step, share) for text, share in zip(new, shares, strict=True)]

    def origins(self):
        """For every line of the present text its place in the source, or None."""
        return [line.origin if line.origin is not None else next(iter(line.replaces), None) for line in self.lines]


def _opcodes(before, after, places):
    """difflib's opcodes, looked for only where the texts differ."""
    i = j = 0
    for i1, i2, j1, j2 in _differing(before, after, places):
        yield "equal", i, i1, j, j1
        for kind, a1, a2, b1, b2 in SequenceMatcher(None, before[i1:i2], after[j1:j2], autojunk=False).get_opcodes():
            yield kind, a1 + i1, a2 + i1, b1 + j1, b2 + j1
        i, j = i2, j2
    yield "equal", i, len(before), j, len(after)


def _differing(before, after, places):
    """[[i1, i2, j1, j2]] of the lines that `places` touch, from 0, those that meet in one."""
    old, new = ([0, *accumulate(map(len, lines))] for lines in (before, after))
    found = []
    for start, end, start_new, end_new in places:
        i1, j1 = bisect.bisect_right(old, start) - 1, bisect.bisect_right(new, start_new) - 1
        i2, j2 = bisect.bisect_left(old, end), bisect.bisect_left(new, end_new)
        if old[i2] != end or new[j2] != end_new:  # the rest of a line follows: the same one
            i2, j2 = bisect.bisect_right(old, end), bisect.bisect_right(new, end_new)
        i2, j2 = min(i2, len(before)), min(j2, len(after))
        if found and (i1 < found[-1][1] or j1 < found[-1][3]):
            found[-1][1], found[-1][3] = max(i2, found[-1][1]), max(j2, found[-1][3])
        else:
            found.append([i1, i2, j1, j2])
    return found


def _sources(line):
    return line.replaces if line.origin is None else (line.origin,)


def _mover(moves, length):
    starts = [move[0] for move in moves]

    def where(place):
        # The last move that starts at or before the place; an insertion starts where its successor does.
        i1, i2, j1, j2, kind = moves[bisect.bisect_right(starts, place) - 1]
        if kind == "equal":
            return min(j1 + place - i1, max(length - 1, 0))
        return max(min(j1 + place - i1, j2 - 1, length - 1), 0)

    return where

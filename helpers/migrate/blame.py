"""Which step wrote which line: an edit script from the source to the result, kept line by line."""

import bisect
from dataclasses import dataclass
from difflib import SequenceMatcher

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

    def update(self, text, step):
        """Take over `text`, which `step` made of the present text; returns where(place) for notes."""
        after = lines_of(text)
        before = [line.text for line in self.lines]
        moves, made = [], []
        for kind, i1, i2, j1, j2 in _opcodes(before, after):
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
        return [self._line(text, step, share) for text, share in zip(new, shares, strict=True)]

    def _line(self, text, step, share):
        if len(share) == 1 and self.source[share[0]] == text:  # changed, and changed back
            del self.removed_by[share[0]]
            return Line(text, share[0])
        return Line(text, None, step, share)

    def origins(self):
        """For every line of the present text its place in the source, or None."""
        return [line.origin if line.origin is not None else next(iter(line.replaces), None) for line in self.lines]


def _opcodes(before, after):
    """difflib's opcodes, with what is equal at both ends cut off first."""
    head = 0
    while head < min(len(before), len(after)) and before[head] == after[head]:
        head += 1
    tail = 0
    while tail < min(len(before), len(after)) - head and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    middle = SequenceMatcher(None, before[head : len(before) - tail], after[head : len(after) - tail], autojunk=False)
    yield "equal", 0, head, 0, head
    for kind, i1, i2, j1, j2 in middle.get_opcodes():
        yield kind, i1 + head, i2 + head, j1 + head, j2 + head
    yield "equal", len(before) - tail, len(before), len(after) - tail, len(after)


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

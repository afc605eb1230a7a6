"""What the migration tells about a script without changing it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Note:
    """A remark. `kind` is "left" (seen and not changed) or "choose" (only you can choose).

    `line` counts from 1 in the result and `source_line` in the source; each is None for a remark
    about the whole script, and `source_line` also where the source has no such line. `lines` are all
    lines of the result that the remark covers.
    """

    kind: str
    line: int | None
    text: str
    advice: str
    source_line: int | None = None
    lines: tuple = ()


class Notes:
    """The notes of one migration; their places move along when a pass changes the text."""

    def __init__(self):
        self._notes = []  # [kind, places: list of 0-based lines of the present text, text, advice]

    def add(self, kind, lines, text, advice):
        """Add a note about 1-based `lines` of the present text.

        One note collects all lines of the same text and advice.
        """
        places = sorted({line - 1 for line in lines})
        for known in self._notes:
            if [known[0], *known[2:]] == [kind, text, advice]:
                known[1] = sorted({*known[1], *places})
                return
        self._notes.append([kind, places, text, advice])

    def move(self, where):
        """Follow a change of the text: `where(place)` is the new place of a line."""
        for note in self._notes:
            note[1] = sorted({where(place) for place in note[1]})

    def final(self, origins):
        """The notes as a tuple of `Note`, in order; `origins[place]` is a line's place in the source or None."""
        made = []
        for kind, places, text, advice in self._notes:
            line = source_line = None
            if places:
                line = places[0] + 1
                origin = origins[places[0]] if places[0] < len(origins) else None
                source_line = None if origin is None else origin + 1
            made.append(Note(kind, line, text, advice, source_line, tuple(place + 1 for place in places)))
        return tuple(sorted(made, key=lambda note: (note.kind == "choose", note.line or 0)))

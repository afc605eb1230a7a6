"""What the migration tells about a script without changing it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Note:
    """A remark. `kind` is "left" (seen and not changed) or "choose" (only you can choose).

    `line` counts from 1 in the result and `source_line` in the source; each is None for a remark
    about the whole script, and `source_line` also where the source has no such line. `lines` are all
    lines of the result that the remark covers. `helpers.language.shown` translates `text` and `advice`.
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
        self._places = {}  # {(kind, text, advice): lines of the present text, from 0}

    def add(self, kind, lines, text, advice):
        """Add a note about 1-based `lines` of the present text; notes of the same words become one."""
        self._places.setdefault((kind, text, advice), set()).update(line - 1 for line in lines)

    def move(self, where):
        """Follow a change of the text: `where[place]` is the new place of a line."""
        for words, places in self._places.items():
            self._places[words] = {where[place] for place in places}

    def final(self, origins):
        """The notes as a tuple of `Note`, in order; `origins[place]` is a line's place in the source or None."""
        made = []
        for (kind, text, advice), places in self._places.items():
            lines = tuple(place + 1 for place in sorted(places))
            origin = origins[lines[0] - 1] if lines else None
            source_line = None if origin is None else origin + 1
            made.append(Note(kind, lines[0] if lines else None, text, advice, source_line, lines))
        return tuple(sorted(made, key=lambda note: (note.kind == "choose", note.line or 0)))

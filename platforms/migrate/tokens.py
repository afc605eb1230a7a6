"""The names, strings and comments of a text with their places; an f-string comes in its pieces."""

import bisect
import io
import re
import tokenize
from dataclasses import dataclass

from .source import lines_of

_KINDS = {"NAME": "name", "STRING": "string", "COMMENT": "comment", "FSTRING_MIDDLE": "text", "TSTRING_MIDDLE": "text"}
_STRING = re.compile(r"""([a-zA-Z]*)('''|\"\"\"|'|")((?:\\.|(?!\2).)*)\2""", re.DOTALL)


@dataclass(frozen=True)
class Token:
    """A "name", "string", "comment" or the "text" in an f-string: the offset where it starts, and its code.

    `inside` is what stands between the quotation marks of a string, from the offset `at`; else the code.
    """

    kind: str
    start: int
    code: str
    prefix: str = ""
    inside: str = ""
    at: int = 0


def string(code, start):
    """The Token of the code of one string, None for several in a row and anything else."""
    match = _STRING.fullmatch(code)
    return match and Token("string", start, code, match[1].lower(), match[3], start + match.start(3))


def tokens(text, fields, shift=0):
    """The tokens of `text`, in order; its first character has the offset `shift`.

    `fields` are the spans of the expressions in f-strings, which Python cuts into tokens only from 3.12 on.
    """
    starts, found = [shift], []
    for line in lines_of(text):
        starts.append(starts[-1] + len(line))
    try:
        for each in tokenize.generate_tokens(io.StringIO(text, newline="").readline):
            kind = _KINDS.get(tokenize.tok_name[each.type])
            start, end = (starts[line - 1] + column for line, column in (each.start, each.end))
            if kind == "string":
                # Not up to `end`: Python 3.12.1 miscounts it in strings over lines with letters outside of ASCII.
                found += _pieces(string(_STRING.match(text, start - shift)[0], start), fields)
            elif kind:
                code = text[start - shift : end - shift]
                found.append(Token(kind, start, code, inside=code, at=start))
    except tokenize.TokenError:
        pass  # the file ends in a backslash; all tokens have come
    return found


def _pieces(token, fields):
    if "f" not in token.prefix:
        return [token]
    found, at = [], token.at

    def take(start, end):
        return token.code[start - token.start : end - token.start]

    first = bisect.bisect_left(fields, (at, 0))
    for start, end in fields[first : bisect.bisect_left(fields, (token.start + len(token.code), 0))]:
        if at <= start:  # not in an expression that comes before
            found.append(Token("text", at, take(at, start), inside=take(at, start), at=at))
            found += tokens(f"({take(start, end)})", fields, start - 1)
            at = end
    rest = take(at, token.at + len(token.inside))
    return [*found, Token("text", at, rest, inside=rest, at=at)]

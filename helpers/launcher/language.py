"""The reader's language for what the helpers say: `local("{n} ranks wait", n=2)`, or `local(f"{n} ranks wait")`.

Messages are English in the code; locale/zh_CN/helpers.po has them in Chinese, brought up to date by `make messages`.
The message of an f-string has its names in braces. A text that such a message made is read backward: what stands in
its places is put, in the reader's language, into those of the translation. So hints and labels stay f-strings.
What the catalog lacks is said in English. A place with !s, as in {name!s}, is code and stays. HELPERS_LANG
chooses (en, zh); without it, notebooks in a folder `zh` get Chinese.

Errors are raised in English, so that programs and records never depend on the language. `said` puts the text of one
into the reader's language where it is shown: in a notebook's traceback, a panel, a form, a terminal.
"""

import ast
import os
import re
from functools import lru_cache

from .. import paths

CATALOGS = {"zh": "zh_CN"}
PLACE = re.compile(r"\{([a-z_]\w*)[^{}]*\}", re.IGNORECASE)  # {name}, {name:g} or {name!r}
PROSE = re.compile("[a-z]{2,} [a-z]{2,}")
CODE = re.compile(r"\{(\w+)!s\}")
FIGURE = "figure"  # the context of the messages of alt texts in a notebook's catalog
# What in a measured text changes from run to run and from machine to machine: numbers, also ranges and lists of
# them, and names of processors. Messages hold {1}, {2}, ... in their place, so a new measurement needs no translator.
NUMBER = r"(?<![\w-])[+-]?\d+(?:[-–:.,]\d+)*(?:e[+-]?\d+)?"
PROCESSOR = r"\b(?:Intel|AMD|NVIDIA|Apple)\b(?:\(R\)|[^,;()])+(?<![. ])"
VARIES = re.compile(rf"{PROCESSOR}|{NUMBER}(?:, {NUMBER})+(?=[],;.)]|$)|{NUMBER}")
ENTRY = re.compile(r'^msgid ((?:".*"\n)+)msgstr ((?:".*"\n?)+)', re.MULTILINE)


def local(text, /, **values) -> str:
    """`text` in the reader's language, with `values` in its named places, as str.format puts them."""
    said = _messages(chosen())
    if values:
        code = CODE.findall(text)
        parts = {name: value if name in code else _part(value) for name, value in values.items()}
        return said.get(text, text).format(**parts)
    if not said or text in said:
        return said.get(text, text)
    return _read_backward(text, chosen())


def _part(value):
    return local(value) if isinstance(value, str) else value


@lru_cache(maxsize=4096)
def _read_backward(text, language):
    """The translation of the message with the most words that can have made `text`; `text` itself without one."""
    lower = text.lower()
    for words, pattern, code, translation in _patterns(language):
        if not re.search("[a-z]", "".join(words)):
            parts = text.split(" · ")  # of a run's name; a sentence may hold one
            if len(parts) > 1 and not any(PROSE.search(part) and len(part.split()) > 2 for part in parts):
                return " · ".join(map(local, parts))
            cut = min(_sentences(text), _before_the_stop(text), key=lambda said: len(re.findall("[a-z]", said)))
            if cut != text:
                return cut
        found = all(word in lower for word in words) and _compiled(pattern).fullmatch(text)
        if found and not (text.endswith(".") and not words[-1].endswith(".")):  # the full stop is no part of a place
            parts = {name: part if name in code else local(part) for name, part in found.groupdict().items()}
            if _sure(words, found.groupdict(), {name: part for name, part in parts.items() if name not in code}):
                return translation.format(**parts)
    return text


def _sentences(text):
    """`text` cut between two sentences, each part translated; if there is a choice, where both can be."""
    best, most = text, 0
    for cut in re.finditer("(?<=[.?]) ", text):
        english = text[: cut.start()], text[cut.end() :]
        said = [local(part) for part in english]
        changed = sum(part != was for part, was in zip(said, english, strict=True))
        if changed > most:
            said = [local("{text}.", text=part[:-1]) if part.endswith(".") else part for part in said]
            best, most = "".join(said), changed
    return best


def _before_the_stop(text):
    """`text` as a message and a full stop."""
    said = local(text[:-1]) if text.endswith(".") else text
    return text if said in (text, text[:-1]) else local("{text}.", text=said)


def _sure(words, english, parts):
    """Whether a text was made from one message, not from several: the words of a short one are in many texts."""
    letters = len(re.findall("[a-z]", "".join(words)))
    if any(re.search("[a-z]{3}", word) and word in part.lower() for word in words for part in english.values()):
        return False
    prose = {name for name, part in parts.items() if PROSE.search(part)}
    if any(". " in english[name] for name in prose):  # the end of a sentence is no part of a place
        return False
    if letters <= 3:  # marks: any text may have them
        changed = any(english[name] != part for name, part in parts.items())
        return changed and not any(english[name] == parts[name] for name in prose)
    return letters > 10 or not prose


def sentences(text) -> str:
    """A text of several sentences or lines, such as the alt text of a figure: each in the reader's language."""
    if text in _messages(chosen()):
        return local(text)
    lines = (" ".join(map(_sentence, re.split("(?<=[.。]) ", line))) for line in text.split("\n"))
    return re.sub("(?<=。) ", "", "\n".join(lines))


def _sentence(text):
    """One sentence; of the alt text of a notebook's own figure the notebook's catalog has each part."""
    figures = _figures(chosen())
    if not figures:
        return local(text)
    english = re.split("(?<=;) ", text)
    parts = [with_slots(part, lambda message: figures.get(message, message)) for part in english]
    if any(part == was for part, was in zip(parts, english, strict=True)):
        return local(text)
    return re.sub("(?<=；) ", "", " ".join(parts))


def with_slots(text, say) -> str:
    """What `say` says of a measured text, with what varies left out before and put back after."""
    varies = []

    def slot(found):
        varies.append(found[0])
        return f"{{{len(varies)}}}"

    return re.sub(r"\{(\d+)\}", lambda found: varies[int(found[1]) - 1], say(VARIES.sub(slot, text)))


def listed(parts, mark=", ", about=None) -> str:
    """Texts one after the other, in the reader's language; with `about` the sentence "about: part, part."."""
    said = local(mark).join(map(local, parts))
    return said if about is None else local("{text}.", text=local("{text}: {more}", text=about, more=said))


def said(text) -> str:
    """The text of an error in the reader's language, line by line. Indented lines stay: they are frames and code."""
    return re.sub(r"(?m)^\S.*$", lambda line: local(line[0]), text)


class Told(Exception):
    """An error that is printed as it is shown, in the reader's language; `args` are in English."""

    def __str__(self):
        return said(super().__str__())


def in_english(error) -> str:
    """The text of an error as records have it."""
    return str(error.args[0]) if isinstance(error, Told) else str(error)


def marked(text) -> str:
    """`text` as it is: a message for the catalog, which is put into words later."""
    return text


def chosen() -> str:
    """The language: a key of CATALOGS, or "en"."""
    wanted = os.environ.get("HELPERS_LANG")
    if not wanted:  # Jupyter sets it to the path of the notebook
        wanted = os.path.basename(os.path.dirname(os.environ.get("JPY_SESSION_NAME", "")))
    short = re.split(r"[-_.]", wanted.lower())[0]
    return short if short in CATALOGS else "en"


@lru_cache(maxsize=len(CATALOGS) + 1)
def _messages(language):
    """{English: translation} of all that is translated for certain."""
    path = _folder(language) / "helpers.po"
    return _catalog(path) if path.is_file() else {}


@lru_cache(maxsize=len(CATALOGS) + 1)
def _figures(language):
    """The same of the alt texts of the notebooks' own figures."""
    found = {}
    for path in sorted(_folder(language).glob("[0-9]*.po")):
        found |= _catalog(path, f'msgctxt "{FIGURE}"\n')
    return found


def _folder(language):
    return paths.project_root() / "locale" / CATALOGS.get(language, "en")


def _catalog(path, context=""):
    found = {}
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        entry = ENTRY.search(block) if context in block else None
        if entry and "#, fuzzy" not in block:
            message, translation = (ast.literal_eval(f"({part})") for part in entry.groups())
            found[message] = translation or message
    found.pop("", None)  # what the file says of itself
    return found


@lru_cache(maxsize=len(CATALOGS) + 1)
def _patterns(language):
    """[(words, pattern, names of places for code, translation)] of messages with places, the most words first.

    A text may begin with a capital where its message does not.
    """
    found = []
    for message, translation in _messages(language).items():
        pieces = PLACE.split(message)  # words and names by turns
        words = [piece.lower() for piece in map(_plain, pieces[::2]) if piece.strip()]
        pattern, seen, code = "", set(), CODE.findall(message)
        for place, piece in enumerate(pieces):
            few = ".*?"
            if pieces[place + 1 : place + 2] == [" "]:
                few = "[^ ]*" if piece in code else ".*"  # a name of two words before a number
            name = f"(?P={piece})" if piece in seen else f"(?P<{piece}>{few})"
            pattern += name if place % 2 else re.escape(_plain(piece))
            seen.update([piece] * (place % 2))
        if words:
            translation = PLACE.sub(r"{\1}", translation)  # what is put there is a text, whatever its format was
            found.append((words, pattern, code, translation))
    return sorted(found, key=lambda entry: -sum(map(len, entry[0])))


@lru_cache(maxsize=4096)
def _compiled(pattern):
    return re.compile(pattern, re.DOTALL | re.IGNORECASE)


def _plain(piece):
    return piece.replace("{{", "{").replace("}}", "}")


WHOLE = (  # of two messages, and what is between the parts of a list
    marked("{text}: {more}"),
    marked("{text}; {more}"),
    marked("{text}, {more}"),
    marked("{text} and {more}"),
    marked("{text} ({more})"),
    marked(", "),
    marked("; "),
)

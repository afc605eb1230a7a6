"""The reader's language for what the helpers say: `local("{n} ranks wait", n=2)`.

Messages are English in the code; locale/zh_CN/helpers.po has them in Chinese, brought up to date by `make messages`.
What it lacks is said in English. HELPERS_LANG chooses (en, zh); without it, notebooks in a folder `zh` get Chinese.
"""

import ast
import os
import re
from functools import lru_cache

from .. import paths

CATALOGS = {"zh": "zh_CN"}
ENTRY = re.compile(r'^msgid ((?:".*"\n)+)msgstr ((?:".*"\n?)+)', re.MULTILINE)


def local(text, /, **values) -> str:
    """`text` in the reader's language, with `values` in its named places, as str.format puts them."""
    said = _messages(chosen()).get(text, text)
    return said.format(**values) if values else said


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
    path = paths.project_root() / "locale" / CATALOGS.get(language, "en") / "helpers.po"
    if not path.is_file():
        return {}
    found = {}
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        entry = ENTRY.search(block)
        if entry and "#, fuzzy" not in block:
            message, translation = (ast.literal_eval(f"({part})") for part in entry.groups())
            found[message] = translation or message
    found.pop("", None)  # what the file says of itself
    return found

"""The reader's language: `_("{n} ranks wait").format(n=2)`.

Messages are English in the code, with named places. `make messages` extracts them with babel into
locale/<language>/helpers.po and compiles that for gettext. HELPERS_LANG chooses the language (en, zh); without it,
notebooks in a folder `zh` or `zh/more` get Chinese. Exceptions, records and the command line are English always.
"""

import gettext
import os
import re
from functools import lru_cache

from . import paths

CATALOGS = {"zh": "zh_CN"}


def _(text) -> str:
    """`text` in the reader's language; itself where the catalog lacks it."""
    return _catalog(chosen()).gettext(text) if text else text


def N_(text) -> str:
    """`text` as it is: marked for the catalog, and translated by `_` where it is shown."""
    return text


class Message(str):
    """English text that is translated where it is shown: a message and its values.

    >>> Message("{n} ranks wait", n=2)
    '2 ranks wait'

    It is a str, so a record or an exception holds the English; `shown` makes it the reader's.
    """

    def __new__(cls, message, **values):
        text = super().__new__(cls, message.format(**values))
        text.message, text.values = message, values
        return text

    def __reduce__(self):
        return _message, (self.message, self.values)


def _message(message, values):
    return Message(message, **values)


def shown(text) -> str:
    """`text` in the reader's language: a Message with its values, which may be Messages; another text by `_`."""
    if not isinstance(text, Message):
        return _(text)
    values = {name: shown(value) if isinstance(value, Message) else value for name, value in text.values.items()}
    return _(text.message).format(**values)


def chosen() -> str:
    """The language: a key of CATALOGS, or "en"."""
    folder = os.path.dirname(os.environ.get("JPY_SESSION_NAME", "")).removesuffix("/more")  # of the notebook
    wanted = os.environ.get("HELPERS_LANG") or os.path.basename(folder)
    short = re.split(r"[-_.]", wanted.lower())[0]
    return short if short in CATALOGS else "en"


@lru_cache(maxsize=len(CATALOGS) + 1)
def _catalog(language):
    folder = paths.project_root() / "locale"
    return gettext.translation("helpers", folder, [CATALOGS.get(language, "en")], fallback=True)

"""The Chinese README and notebooks say what the English ones say: no message is missing, nothing but prose differs.

Each check takes an English message and its translation and yields what is wrong.
"""

import csv
import gettext
import re
from collections import Counter

import mistune  # the parser of nbconvert
import nbformat
import pytest

from tools import render_notebooks, translate

NAMES = translate.names()
NOTEBOOKS = [name for name in NAMES if translate.source(name).suffix == ".ipynb"]
FOLDER = translate.ROOT / "notebooks"
HAN = re.compile(f"[{translate.HAN}]")
CODE, FORMULA = re.compile(r"`+[^`]+`+"), re.compile(r"\$\$?[^$]+\$\$?")
LINK, NUMBER = re.compile(r"\]\(([^)\s]+)\)"), re.compile(r"\d+(?:[.,]\d+)*")
html = mistune.create_markdown(plugins=["table", "url"], escape=False)


def bare(text):
    """A message without its code, formulas and link targets."""
    return LINK.sub("]", FORMULA.sub(" ", CODE.sub(" ", text)))


def parts(text):
    """What is the same in both languages."""
    return {
        "code": CODE.findall(text),
        "formulas": FORMULA.findall(CODE.sub(" ", text)),
        "links": LINK.findall(text),
        "numbers": NUMBER.findall(bare(text)),
        "table cells": re.findall(r"<t[dh]", html(text)) if text.startswith("|") else [],
    }


def check_parts(english, chinese):
    ours, theirs = parts(english), parts(chinese)
    for what in ours:
        missing, extra = (Counter(a) - Counter(b) for a, b in ((ours[what], theirs[what]), (theirs[what], ours[what])))
        if missing or extra:
            yield f"{what} differ: missing {sorted(missing.elements())}, extra {sorted(extra.elements())}"


def check_is_chinese(english, chinese):
    if len(re.findall(r"\b[a-z]{2,}\b", bare(english))) >= 3 and not HAN.search(chinese):
        yield "still English"
    if translate.tidy(chinese) != chinese:
        yield f"punctuation or spaces: run `make messages` to make it {translate.tidy(chinese)}"


def check_emphasis(english, chinese):
    """Between a full stop and a letter, `**` ends no bold text but is two stars. Slanted Chinese is hard to read."""
    pages = [re.sub(r"<code>.*?</code>", "", html(text)) for text in (english, chinese) if "*" in chinese]
    if pages and pages[1].count("*") > pages[0].count("*"):
        yield "emphasis that does not render: put the punctuation mark behind the stars"
    if pages and re.search(rf"<em>[^<]*{HAN.pattern}", pages[1]):
        yield "Chinese in italics: make it bold"


with open(translate.LOCALE / "glossary.csv", encoding="utf-8", newline="") as file:
    GLOSSARY = {row["english"]: row["chinese"].split("|") for row in csv.DictReader(file)}  # a term: what it may be


def spelt(term):
    """A pattern for a term, with a hyphen or a space, at the start of a sentence too; ZeRO is not zero."""
    return re.sub("[ -]", "[ -]", f"((?i:{term}))" if term.islower() else f"({term})")


LONGEST_FIRST = sorted(GLOSSARY, key=len, reverse=True)  # one may contain another
TERMS = re.compile(rf"\b(?:{'|'.join(map(spelt, LONGEST_FIRST))})(?:s|es)?\b")


def check_terms(english, chinese):
    for term in {LONGEST_FIRST[found.lastindex - 1] for found in TERMS.finditer(bare(english))}:
        if not any(word.lower() in chinese.lower() for word in GLOSSARY[term]):
            yield f"`{term}` is {' or '.join(GLOSSARY[term])} in locale/zh_CN/glossary.csv"


CHECKS = [check_parts, check_is_chinese, check_emphasis, check_terms]


def problems_of(english, chinese):
    return [problem for check in CHECKS for problem in check(english, chinese)]


@pytest.mark.parametrize("name", [*NAMES, translate.HELPERS])
def test_every_message_is_translated(name):
    assert not list(translate.problems(name)), "\n" + "\n".join(translate.problems(name))


@pytest.mark.parametrize("name", NAMES)
def test_translations_agree_with_their_messages(name):
    problems = [
        f"{name}, {message.context or 'page'}: {problem}\n  {message.id}\n  {message.string}"
        for message in translate.read(name)
        if message.id and message.string
        for problem in problems_of(message.id, message.string)
    ]
    assert not problems, "\n" + "\n".join(problems)


PLACE = re.compile(r"\{[^{}]*\}")


def test_what_the_code_says_has_the_same_places_in_chinese_and_is_compiled():
    catalog = translate.read(translate.HELPERS)
    for message in catalog:
        if message.id:
            english, chinese = ({*re.findall(r"\{(\w*)", text)} for text in (message.id, message.string))
            assert chinese <= english <= chinese | {"s", "s_b"}, (message.id, message.string)  # Chinese has no plural
            assert not list(check_is_chinese(PLACE.sub(" ", message.id), message.string)), message.string
    with open(translate.LOCALE / "LC_MESSAGES" / "helpers.mo", "rb") as file:
        compiled = gettext.GNUTranslations(file)
    assert all(compiled.gettext(message.id) == message.string for message in catalog if message.id)


@pytest.mark.parametrize("name", NAMES)
def test_writing_again_gives_the_same_bytes(name):
    for path, text in translate.write(name).items():
        assert path.read_bytes() == text.encode(), f"{path.name}: run `make zh`"


def without_prose(path, own_outputs):
    """The notebook without what is translated; of outputs that were made in Chinese, only their kinds stay."""
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    notebook.metadata.pop(render_notebooks.SPEAKS, None)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = ""
        for output in cell.get("outputs", []):
            for shown in output.get("metadata", {}).values():
                shown.pop("alt", None)
        if own_outputs and "outputs" in cell:
            cell.outputs = sorted({kind for output in cell.outputs for kind in output.get("data", ["text"])} - {"text"})
    return notebook


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_nothing_but_prose_differs(name):
    chinese = translate.target(name)
    own = render_notebooks.SPEAKS in nbformat.read(chinese, as_version=nbformat.NO_CONVERT).metadata
    assert without_prose(chinese, own) == without_prose(translate.source(name), own)
    assert not render_notebooks.check(translate.target(name))


@pytest.mark.long
def test_a_chinese_notebook_runs_where_it_lies(tmp_path):
    """If possible one of zh/more that reads notebooks/scripts, which lies far from there."""
    reads = [
        path
        for path in sorted((FOLDER / "zh").rglob("[0-9]*.ipynb"))
        if re.search(r"scripts[ /]", path.read_text(encoding="utf-8"))
    ]
    paths = sorted(reads, key=lambda path: path.parent.name != "more")
    notebook = nbformat.read(paths[0], as_version=4)
    render_notebooks.execute(notebook, paths[0].parent, tmp_path, timeout=600)
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")

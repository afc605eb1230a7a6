"""The Chinese README and notebooks say what the English ones say: no message is missing, nothing but prose differs.

Each check takes an English message and its translation and yields what is wrong. Below, tools/translate.py is tested.
"""

import csv
import gettext
import re
from collections import Counter

import mistune  # the parser of nbconvert
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools import render_notebooks, translate

NAMES = translate.names()
NOTEBOOKS = [name for name in NAMES if name not in (translate.README, translate.DRAWINGS)]
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


def without_prose(path):
    """The notebook without what is translated."""
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = ""
        for output in cell.get("outputs", []):
            for shown in output.get("metadata", {}).values():
                shown.pop("alt", None)
    return notebook


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_nothing_but_prose_differs(name):
    assert without_prose(translate.target(name)) == without_prose(translate.source(name))
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


# tools/translate.py


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project of one notebook, whose every message is translated as its text in capitals; call it to change prose."""
    monkeypatch.setattr(translate, "ROOT", tmp_path)
    monkeypatch.setattr(translate, "LOCALE", tmp_path / "locale")
    (tmp_path / "notebooks").mkdir()

    def save(old="", new=""):
        figure = new_output("display_data", data={"text/plain": "1 bar"}, metadata={"image/png": {"alt": "1 bar"}})
        cells = [
            new_markdown_cell(
                "# Ranks\n\nEach rank is a process,\nand has a number.\n\nSee [1](one.ipynb).", id="words"
            ),
            new_code_cell("1 + 1", outputs=[figure], id="code"),
        ]
        cells[0].source = cells[0].source.replace(old, new)
        nbformat.write(new_notebook(cells=cells), tmp_path / "notebooks" / "one.ipynb")

    save()
    assert translate.main(["messages", "one"]) == 0
    finish()
    return save


def finish():
    catalog = translate.read("one")
    for message in catalog:
        message.string = message.id.upper().replace("ONE.IPYNB", "one.ipynb")
        message.flags, message.previous_id = set(), []
    (translate.LOCALE / "one.po").write_bytes(translate.text(catalog))


def written():
    """The Chinese text of the project's notebook."""
    (text,) = translate.write("one").values()
    return text


def test_a_changed_paragraph_is_named_with_its_old_and_its_new_text(project):
    assert list(translate.problems("one")) == []
    assert "EACH RANK IS A PROCESS, AND HAS A NUMBER.\\n" in written()
    project("Each rank is a process", "Every rank is one process")
    said = "was: Each rank is a process, and has a number.\n  now: Every rank is one process, and has a number."
    for command in ("run `make messages`", "translate it again", "translate it again"):
        assert list(translate.problems("one")) == [f"one, words: changed, {command}\n  {said}"]
        assert "one process, and has" in written()  # rather the English text than an old one
        translate.main(["messages"])
    finish()
    assert list(translate.problems("one")) == []


def page(source):
    return re.sub(r"\s+", " ", html(source))


@pytest.mark.parametrize(
    "path",
    sorted([*FOLDER.glob("*.ipynb"), *FOLDER.glob("more/*.ipynb"), translate.source("readme")]),
    ids=lambda path: path.stem,
)
def test_cutting_into_messages_and_joining_them_changes_no_page(path):
    if path.suffix == ".md":
        sources = [path.read_text(encoding="utf-8")]
    else:
        sources = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]
    for source in sources:
        assert page(translate.prose(source, lambda message: message)) == page(source)


@pytest.mark.parametrize(
    "typed, tidy",
    [
        ("在3个rank (`a,b`),见[文](a.md):1,024", "在 3 个 rank（`a,b`），见[文](a.md)：1,024"),
        ("样本 0, 1 在 f(x), 12:30;", "样本 0, 1 在 f(x), 12:30；"),
        ("| 图 |\n|:---|\n| ![图](a,b.svg) |", "| 图 |\n|:---|\n| ![图](a,b.svg) |"),
    ],
)
def test_chinese_punctuation_is_put_in(typed, tidy):
    assert translate.tidy(typed) == translate.tidy(tidy) == tidy

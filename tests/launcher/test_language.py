"""What the helpers say, in the reader's language."""

import re
import string
import subprocess
import sys
from contextlib import nullcontext

import pytest
from kernel import ROOT

from helpers import check, paths
from helpers.launcher import display, language
from helpers.plots import layout, style
from tools import translate


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch):
    for name in ("HELPERS_LANG", "JPY_SESSION_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("variables, language_of", [
    ({}, "en"), ({"HELPERS_LANG": "zh_CN.UTF-8"}, "zh"), ({"HELPERS_LANG": "fr"}, "en"),
    ({"JPY_SESSION_NAME": "/kit/notebooks/zh/00.ipynb"}, "zh"), ({"JPY_SESSION_NAME": "/zh/notebooks/00.ipynb"}, "en"),
    ({"JPY_SESSION_NAME": "/kit/notebooks/zh/00.ipynb", "HELPERS_LANG": "en"}, "en"),
])  # fmt: skip
def test_the_variable_or_the_notebooks_folder_chooses(monkeypatch, variables, language_of):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert language.chosen() == language_of


def test_checks_and_states_are_said_in_chinese(monkeypatch, capsys):
    monkeypatch.setenv("HELPERS_LANG", "zh")
    assert check.slices(lambda rank, size, samples: (rank * samples // size, (rank + 1) * samples // size))
    assert not check.slices(lambda rank, size, samples: (0, samples))
    assert not check.slices(lambda rank, size, samples: 1 / 0)
    right, twice, raised = capsys.readouterr().out.splitlines()
    assert all(re.search(f"[{translate.HAN}]", line) for line in (right, twice, raised))
    assert "1437" in twice and "ZeroDivisionError" in raised and "{" not in right + twice + raised
    assert display.waiting_for(["a", "b"]) != "waiting for a and b to end"
    monkeypatch.setenv("HELPERS_LANG", "en")
    assert display.waiting_for(["a", "b"]) == "waiting for a and b to end"


def test_what_has_no_translation_stays_english(monkeypatch, tmp_path):
    monkeypatch.setenv("HELPERS_LANG", "zh")
    assert language.local("no such message: {n:g}", n=0.5) == "no such message: 0.5"
    (tmp_path / "locale" / "zh_CN").mkdir(parents=True)
    entries = ['msgid "from {x}"\nmsgstr "b {x}\\""\n', '#, fuzzy\nmsgid "c"\nmsgstr "d"\n', 'msgid "e"\nmsgstr ""\n']
    monkeypatch.setattr(paths, "project_root", lambda: tmp_path)
    forget()
    assert language.local("e") == "e"  # no catalog
    (tmp_path / "locale" / "zh_CN" / "helpers.po").write_text("\n".join(entries))
    forget()
    assert (language.local("from {x}", x=1), language.local("c"), language.local("e")) == ('b 1"', "c", "e")
    assert (language.local("from 1"), language.local("Up from 1")) == ('b 1"', "Up from 1")
    forget()


def forget():
    for kept in (language._messages, language._patterns, language._read_backward):
        kept.cache_clear()


def test_a_hint_with_values_is_said_in_chinese(monkeypatch):
    hint = "1437 samples, 12 epoch(s), global batch 64: 264 is right for one epoch. There are 12."
    assert language.local(hint) == hint
    monkeypatch.setenv("HELPERS_LANG", "zh")
    said = language.local(hint)
    assert all(number in said for number in ("1437", "64", "264", "12")) and not re.search("[a-z]{3} [a-z]{3}", said)
    foreign = "Something that nobody has translated: it stays, with 2 parts. All of it."
    assert language.local(foreign) == foreign


def test_the_catalog_has_all_that_is_said_with_the_same_places():
    assert not list(translate.problems(translate.HELPERS))
    catalog = language._messages("zh")
    assert catalog == {message.id: message.string for message in translate.read(translate.HELPERS) if message.id}
    of_plurals = ("s", "s_b")  # Chinese has none
    places = lambda text: sorted(  # noqa: E731
        (name, form, turn) for _, name, form, turn in string.Formatter().parse(text) if name not in (None, *of_plurals)
    )
    for english, chinese in catalog.items():
        assert places(english) == places(chinese), english


def test_messages_are_found_where_they_are_said():
    code = "def f():\n    'a docstring of four words'\n    local('a {b}', b=1)\n"
    code += "    x = marked('c')\n    return 'what a check says alone'"
    assert list(translate.spoken(code)) == ["a {b}", "c"]
    assert set(translate.spoken(code, telling=True)) == {"a {b}", "c", "what a check says alone"}
    assert list(translate.spoken('raise ValueError("these words are no hint")', telling=True)) == []


def test_english_reads_no_catalog():
    code = "import sys; from helpers.launcher import language; language.local('x'); sys.exit('babel' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=300)


@pytest.mark.parametrize("fonts, chinese", [(["DejaVu Sans"], False), (["DejaVu Sans"] * 2, True)])
def test_a_figures_labels_are_chinese_where_a_font_has_the_characters(monkeypatch, fonts, chinese):
    monkeypatch.setenv("HELPERS_LANG", "zh")
    monkeypatch.setattr(style, "fonts", lambda: fonts)
    with pytest.warns(UserWarning, match="Glyph") if chinese else nullcontext():
        with layout.sheet("Training loss", key=[("steps", style.SKY, "")]) as (figure, [axes]):
            axes.set_xlabel("seconds")
        style.png(figure)
    seen = [figure.texts[0].get_text(), figure.legends[0].get_texts()[0].get_text(), axes.get_xlabel()]
    assert [bool(re.search(f"[{translate.HAN}]", text)) for text in seen] == [chinese] * 3

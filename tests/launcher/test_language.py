"""What the helpers say, in the reader's language."""

import re
import string
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
from IPython.core import ultratb
from kernel import ROOT

from exercises import check
from helpers import paths
from helpers.config import RunConfig
from helpers.launcher import display, errors, language, limit
from helpers.plots import layout, style
from helpers.report import page
from helpers.report.report import everything
from tools import translate


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch):
    for name in ("HELPERS_LANG", "JPY_SESSION_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "variables, language_of",
    [
        ({}, "en"),
        ({"HELPERS_LANG": "zh_CN.UTF-8"}, "zh"),
        ({"HELPERS_LANG": "fr"}, "en"),
        ({"JPY_SESSION_NAME": "/kit/notebooks/zh/00.ipynb"}, "zh"),
        ({"JPY_SESSION_NAME": "/zh/notebooks/00.ipynb"}, "en"),
        ({"JPY_SESSION_NAME": "/kit/notebooks/zh/00.ipynb", "HELPERS_LANG": "en"}, "en"),
    ],
)
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
    error = """raise ValueError(f"{name!s} is {value!r}; leave it out\\n{more}" + "or choose another")"""
    assert list(translate.spoken(error, telling=True)) == []
    assert list(translate.spoken(error, raising=True)) == ["{name!s} is {value}; leave it out", "or choose another"]


ENGLISH = re.compile("[a-z]{3,} [a-z]{3,}")


@pytest.mark.parametrize(
    "settings, kept",
    [
        ({"epochs": 0}, "epochs 是 0"),
        ({"local_batch": 2.5}, "local_batch (--batch-size) 是 2.5"),
        ({"lr": -1}, "lr 是 -1"),
        ({"momentum": 1}, "momentum 是 1"),
        ({"evaluate": 1}, "evaluate 是 1"),
        ({"strategy": "dpp"}, "'ddp'"),
        ({"nproc_per_node": 2}, "nproc_per_node 是 2"),
        ({"shard": "grad_op"}, "shard 是 'grad_op'"),
        ({"epochs": 2, "steps": 3}, "3"),
        ({"model": "gpt"}, "data='tokens'"),
        ({"evaluate_every": 2}, "evaluate_every 是 2"),
        ({"strategy": "ddp", "nproc_per_node": 4, "global_batch": 10}, "8 or 12"),
    ],
)
def test_what_is_wrong_with_settings_is_shown_in_chinese_and_raised_in_english(monkeypatch, settings, kept):
    monkeypatch.setenv("HELPERS_LANG", "zh_CN")
    with pytest.raises((TypeError, ValueError)) as caught:
        RunConfig(**settings)
    english = str(caught.value)
    assert english.isascii() or "×" in english
    assert kept in language.said(english) and not ENGLISH.search(language.said(english).replace("8 or 12", ""))
    monkeypatch.setenv("HELPERS_LANG", "en")
    assert language.said(english) == english


@pytest.mark.long
def test_every_message_with_values_is_read_as_itself(monkeypatch):
    monkeypatch.setenv("HELPERS_LANG", "zh")
    for english, chinese in language._messages("zh").items():
        names = list(dict.fromkeys(found[1] for found in language.PLACE.finditer(english)))
        known = len(re.findall("[a-z]", language.PLACE.sub("", english))) > 3  # else there is nothing to know it by
        if names and known and "{{" not in english and english.count("{") == len(names):
            values = {name: "s" if name in ("s", "s_b") else f"q{place}x" for place, name in enumerate(names)}
            assert language.local(filled(english, values)) == filled(chinese, values)


def filled(text, values):
    return language.PLACE.sub(lambda found: values[found[1]], text)


BROKEN = 'Traceback (most recent call last):\n  File "a.py", line 1\n    the rank was stopped\nValueError: no label'
OF_RANKS = [
    lambda: errors.rank_error([errors.Failure(1, 0, exitcode=-9)], (), 2),
    lambda: errors.rank_error([errors.Failure(0, 0, exitcode=-11)], (), 1),
    lambda: errors.rank_error([errors.Failure(0, 0, exitcode=3)], (), 2, kept=True),
    lambda: errors.rank_error([errors.Failure(1, 0, BROKEN), errors.Failure(0, 1, BROKEN)], (), 4),
    lambda: errors.rank_error([errors.Failure(1, 0, BROKEN + "\nBroken pipe")], {0}, 2),
    lambda: errors.rank_error([errors.Failure(1, 0, BROKEN, out_of_memory())], (), 2),
    lambda: errors.timeout_error(2, {0: "    at f"}, [0, 1], 2),
]


def out_of_memory():
    return limit.out_of_memory(190e6, 188e6, "asked for 0.983 MB more")


@pytest.mark.parametrize("make", OF_RANKS)
def test_a_failed_rank_is_shown_in_chinese_and_recorded_in_english(monkeypatch, make):
    english = str(make())
    monkeypatch.setenv("HELPERS_LANG", "zh_CN")
    error = make()
    assert language.in_english(error) == english != str(error)
    assert re.findall("(?m)^ .*", english) == re.findall("(?m)^ .*", str(error))  # frames
    told = re.sub("(?m)^( |Traceback|Broken|ValueError).*", "", str(error))
    assert re.search(f"[{translate.HAN}]", told) and not ENGLISH.search(told), told


def test_a_traceback_in_a_notebook_ends_in_chinese(monkeypatch):
    shell = SimpleNamespace(InteractiveTB=ultratb.AutoFormattedTB(mode="Plain"))
    errors.translate_tracebacks(shell)
    try:
        RunConfig(epochs=0)
    except ValueError as error:
        show = partial(shell.InteractiveTB.structured_traceback, type(error), error, error.__traceback__)
        assert "it must be 1 or more" in "".join(show())
        monkeypatch.setenv("HELPERS_LANG", "zh_CN")
        *frames, last = show()
        assert "epochs 是 0；它必须至少为 1" in last and "RunConfig(epochs=0)" in "".join(frames)


def test_a_comparison_and_a_report_are_chinese(monkeypatch):
    found = everything(ROOT / "recorded" / "machines")
    ladder, names = found.sites[0].ladders[0], "|".join(ladder.name for site in found.sites for ladder in site.ladders)
    table, text, page = str(ladder.comparison), found.text(), report_page(found)
    assert "speed-up" in table and "步耗时" not in table + text + page and '<html lang="en">' in page
    monkeypatch.setenv("HELPERS_LANG", "zh_CN")
    assert not ENGLISH.search(str(ladder.comparison)) and "加速比" in str(ladder.comparison)
    text = re.sub(names, "", found.text())
    assert "步耗时（ms）" in text and not [line for line in text.splitlines() if ENGLISH.search(line)]
    chinese = report_page(found)
    assert '<html lang="zh-CN">' in chinese
    settings = '<table class="plain">.*?</table>|<style>.*?</style>'  # names in code and values from records
    words = re.sub(f"(?s){settings}|<[^>]*>|{names}", "\n", chinese)
    assert not [line for line in words.splitlines() if ENGLISH.search(line) and "article" not in line]


def report_page(found):
    """The page without its figures, whose words are tested elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "_images", lambda drawn: [])
        return page.page_of(found)


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

"""The reader's language: which it is, and what is translated into it."""

import pickle

import pytest
from babel.messages import mofile, pofile

from helpers import RunConfig, language, paths
from helpers.language import N_, Message, _, shown


@pytest.mark.parametrize(
    "variables, expected",
    [
        ({}, "en"),
        ({"HELPERS_LANG": "zh_CN.UTF-8"}, "zh"),
        ({"HELPERS_LANG": "fr"}, "en"),
        ({"JPY_SESSION_NAME": "/kit/notebooks/zh/00.ipynb"}, "zh"),
        ({"JPY_SESSION_NAME": "/kit/notebooks/zh/more/00.ipynb"}, "zh"),
        ({"JPY_SESSION_NAME": "/zh/notebooks/00.ipynb"}, "en"),
        ({"JPY_SESSION_NAME": "/kit/notebooks/zh/00.ipynb", "HELPERS_LANG": "en"}, "en"),
    ],
)
def test_the_variable_or_the_notebooks_folder_chooses(monkeypatch, variables, expected):
    for name in ("HELPERS_LANG", "JPY_SESSION_NAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert language.chosen() == expected


@pytest.fixture
def chinese(monkeypatch, tmp_path):
    """A catalog of three messages."""
    file = tmp_path / "locale" / "zh_CN" / "LC_MESSAGES" / "helpers.mo"
    file.parent.mkdir(parents=True)
    catalog = pofile.Catalog("zh_CN")
    for message, translation in {"{n} of {what}": "{what}:{n}", "rank {r:.1f}": "R{r:.1f}", "word": "W"}.items():
        catalog.add(message, translation)
    with file.open("wb") as binary:
        mofile.write_mo(binary, catalog)
    monkeypatch.setattr(paths, "project_root", lambda: tmp_path)
    monkeypatch.setenv("HELPERS_LANG", "zh")
    language._catalog.cache_clear()
    yield
    language._catalog.cache_clear()


def test_messages_are_translated_where_they_are_shown(chinese, monkeypatch):
    message = Message("{n} of {what}", n=2, what=Message("rank {r:.1f}", r=1))
    assert message == pickle.loads(pickle.dumps(message)) == "2 of rank 1.0", "it is English until it is shown"
    assert shown(message) == shown(pickle.loads(pickle.dumps(message))) == "R1.0:2"
    assert (_("word"), shown("word"), N_("word"), _("not there"), _("")) == ("W", "W", "word", "not there", "")
    monkeypatch.setenv("HELPERS_LANG", "en")
    assert (shown(message), _("word")) == ("2 of rank 1.0", "word")


def test_errors_are_english(monkeypatch):
    monkeypatch.setenv("HELPERS_LANG", "zh")
    with pytest.raises(ValueError) as caught:
        RunConfig(epochs=0)
    assert str(caught.value).isascii()

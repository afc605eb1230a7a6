"""notebooks/scripts, which notebook 08 starts: edits of a script, and the scripts of other frameworks."""

import json
import os

import pytest

from helpers.paths import project_root
from notebooks.scripts import frameworks, ten_steps


def test_a_script_is_edited_where_the_text_is_there_just_once():
    assert ten_steps.edited("a b c", ("a", "x"), ("c", "a")) == "x b a"
    for script in ("b", "a a"):
        with pytest.raises(ValueError, match="not once"):
            ten_steps.edited(script, ("a", "x"))


def test_a_diff_is_markdown():
    told = ten_steps.diff("one\ntwo\nthree\n", "one\n2\nthree\n")
    assert told.splitlines() == ["```diff", "…", " one", "-two", "+2", " three", "```"]


def assert_as_one_process(name, found):
    record = json.loads((project_root() / "recorded" / "hvd" / f"{name}.json").read_text())["found"]
    pairs = [(found[way], record[way]) for way in ("horovod", "kvstore")] if name == "mxnet" else [(found, record)]
    for each, expected in pairs:
        difference, equal, (first, last) = frameworks.outcome(each)
        assert equal and difference <= 1.2e-7 and last < first
        assert each["losses"] == pytest.approx(expected["losses"], abs=2e-3)


@pytest.mark.parametrize("name", frameworks.SCRIPTS)
def test_a_recorded_run_is_shown_where_there_is_no_environment(name, monkeypatch, tmp_path):
    monkeypatch.setenv(f"HELPERS_{name.upper()}_PYTHON", str(tmp_path / "none"))
    found, said = frameworks.run_or_show(name)
    assert said.startswith("recorded 20") and said.endswith(f"make {name}") and f"{name} " in said
    assert_as_one_process(name, found)


@pytest.mark.parametrize("name", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in frameworks.SCRIPTS])
def test_two_ranks_find_here_what_was_recorded(name):
    if not os.access(frameworks.python_of(name), os.X_OK):
        pytest.skip(f"no environment for it here: make {name}")
    found, said = frameworks.run_or_show(name)
    assert said == "run here, just now"
    assert_as_one_process(name, found)


@pytest.mark.parametrize("words, status", [("echo no news", 0), ("exit 3", 3)])
def test_a_script_that_fails_is_an_error(words, status, monkeypatch, tmp_path):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{words}\n")
    python.chmod(0o755)
    monkeypatch.setenv("HELPERS_KERAS_PYTHON", str(python))
    with pytest.raises(RuntimeError, match=f"keras_fit.py ended with {status}"):
        frameworks.run_or_show("keras")

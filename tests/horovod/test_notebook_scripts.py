"""notebooks/scripts, which notebook 08 starts: edits of a script, a sweep, and the scripts of other frameworks."""

import json
import os

import pytest

from helpers.paths import project_root
from notebooks.scripts import frameworks, rates, ten_steps


def test_each_step_can_be_left_out():
    assert list(ten_steps.EDITS) == list(range(1, 11))
    for left_out in range(11):
        text = ten_steps.PLAIN
        for old, new in (pair for step, of in ten_steps.EDITS.items() if step != left_out for pair in of):
            assert text.count(old) == 1, (left_out, old)
            text = text.replace(old, new)
        compile(text, "<script>", "exec")


def test_the_rates_of_the_sweep_are_all_recorded():
    kept = json.loads((project_root() / rates.RECORD).read_text())
    found = {(row["optimizer"], row["batch"], row["rate"]): len(row["accuracy"]) for row in kept["rows"]}
    wanted = {(name, batch, rate) for name, of in rates.RATES.items() for batch in rates.BATCHES for rate in of}
    assert set(found) == wanted and set(found.values()) == {len(rates.SEEDS)}


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

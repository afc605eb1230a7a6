"""The frame of the benchmarks: targets met and missed, records, the table and the figure made of them."""

import sys
import types

import pytest

from benchmarks import __main__ as bench
from benchmarks import records
from helpers import measure

TARGETS = {
    "warm": ("<=", 0.1),
    "theirs / ours": (">=", 40),
    "faults": ("<=", 0),
    "elsewhere": ("<=", 1),
    "peer": ("<=", 2),
}
WARM = [0.07, 0.08, 0.09, 0.08, 0.1]


def module(**changes):
    """A benchmark."""
    made = types.ModuleType("planted", "What it measures.\n\nMore.")
    made.UNIT, made.TARGETS = "s", TARGETS
    made.reasons = lambda rows, ratios: {"theirs / ours": "theirs | got quicker", "elsewhere": "needs a second host"}
    made.notes = lambda rows, ratios: ["peer 1.2.3"]
    made.__dict__.update(changes)
    return made


def record(warm=WARM, ratio=36.2, faults=0, **changes):
    rows = {"warm": measure.summary(warm), "peer": {"bad": "hangs for ever"}}
    return records.new("launch", module(**changes), rows, {"theirs / ours": ratio, "faults": faults}, 12.3)


def verdicts(*given, **changes):
    return {one.what: one for one in records.verdicts(record(*given, **changes))}


def test_a_target_is_met_missed_or_open_with_its_reason():
    found = verdicts()
    assert found["warm"].met and found["faults"].met and found["warm"].factor == pytest.approx(0.1 / 0.08)
    assert found["theirs / ours"].met is False and found["theirs / ours"].why == "theirs | got quicker"
    assert found["peer"].met is False and found["peer"].why == "hangs for ever"
    assert found["elsewhere"].met is None and found["elsewhere"].why == "needs a second host"
    slower = verdicts([10 * sample for sample in WARM], ratio=41, faults=1)
    assert slower["warm"].met is False and slower["theirs / ours"].met and slower["faults"].met is False
    assert verdicts(ratio=float("nan"))["theirs / ours"].met is False


def test_records_are_kept_and_read(tmp_path):
    records.keep(record(), tmp_path / "bench")
    records.keep(record(), tmp_path / "bench", "gpu")
    kept = records.read(tmp_path / "bench")
    assert set(kept) == {"launch-gpu", "launch"} and kept["launch"]["notes"] == ["peer 1.2.3"]
    (tmp_path / "bench" / "old.json").write_text('{"schema": 0}')
    with pytest.raises(ValueError, match="schema 0"):
        records.read(tmp_path / "bench")


def test_a_run_writes_its_record_and_goes_on_after_a_failure(tmp_path, monkeypatch, capsys):
    sound = module(run=lambda: ({"warm": measure.summary(WARM)}, {"theirs / ours": 36.2, "faults": 2, "none": None}))
    monkeypatch.setitem(sys.modules, "benchmarks.sound", sound)
    monkeypatch.setitem(sys.modules, "benchmarks.broken", module(run=lambda: 1 / 0))
    monkeypatch.setattr(bench, "available", lambda: ["broken", "sound"])
    monkeypatch.setenv("HELPERS_RESULTS", str(tmp_path))
    monkeypatch.setattr(records, "kept_folder", lambda: tmp_path / "kept")
    assert bench.main([]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert len(list((tmp_path / "bench").glob("sound-*.json"))) == 1 and not (tmp_path / "kept").exists()
    assert bench.main(["sound", "--keep", "--label", "gpu"]) == 0
    assert list(records.read(tmp_path / "kept")) == ["sound-gpu"]
    with pytest.raises(SystemExit):
        bench.main(["nowhere"])

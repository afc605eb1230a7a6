"""The frame of the benchmarks: targets met and missed, records, the table and the figure made of them."""

import json
import sys
import types

import pytest
from kernel import ROOT

from benchmarks import __main__ as bench
from benchmarks import figure, records, table
from helpers import measure
from helpers.plots import style

sys.path.insert(0, str(ROOT / "tools"))
import render_pages

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


def test_a_target_is_met_or_missed_with_its_reason():
    found = verdicts()
    assert found["warm"].met and found["warm"].why == "" and found["faults"].met
    assert found["theirs / ours"].met is False and found["theirs / ours"].why == "theirs | got quicker"
    assert found["peer"].met is False and found["peer"].why == "hangs for ever"
    assert found["elsewhere"].met is None and found["elsewhere"].why == "needs a second host"
    slower = verdicts([10 * sample for sample in WARM], ratio=41, faults=1)
    assert slower["warm"].met is False and slower["theirs / ours"].met and slower["faults"].met is False
    assert "does not say why" in slower["warm"].why
    assert verdicts(ratio=float("nan"))["theirs / ours"].met is False


def test_how_far_from_the_target():
    found = verdicts(ratio=80)
    assert found["theirs / ours"].factor == 2 and found["warm"].factor == pytest.approx(0.1 / 0.08)
    assert found["faults"].factor is None and found["elsewhere"].factor is None


def test_a_ratio_may_have_a_spread_and_a_unit():
    ratios = {"theirs / ours": {**measure.summary([1, 2, 3, 4, 5]), "unit": "MB"}}
    (one,) = records.verdicts({**record(), "targets": {"theirs / ours": [">=", 3]}, "ratios": ratios})
    assert table.measured(one) == "3.00 MB (2.00 to 4.00)" and table.goal(one) == "≥ 3 MB" and one.met


def test_records_are_kept_and_read(tmp_path):
    made = record()
    records.keep(made, tmp_path / "bench")
    records.keep(made, tmp_path / "bench", "gpu")
    kept = records.read(tmp_path / "bench")
    assert list(kept) == ["launch-gpu", "launch"] or list(kept) == ["launch", "launch-gpu"]
    assert kept["launch"] == json.loads(json.dumps(made))
    assert kept["launch"]["what"] == "What it measures." and kept["launch"]["notes"] == ["peer 1.2.3"]
    (tmp_path / "bench" / "old.json").write_text('{"schema": 0}')
    with pytest.raises(ValueError, match="schema 0"):
        records.read(tmp_path / "bench")


def test_the_table_says_everything():
    text = "\n".join(table.lines({"launch": record(), "precision": record(TARGETS={})}))
    assert text.startswith("2 of 5 targets are met, 2 missed, 1 not measured.")
    assert "| launch | warm | 0.0800 s (0.0800 to 0.0900) | ≤ 0.1 s | met |" in text
    assert "| launch | theirs / ours | 36.2 | ≥ 40 | missed: theirs \\| got quicker |" in text
    assert "| launch | peer | – | ≤ 2 s | missed: hangs for ever |" in text
    assert "- launch: peer 1.2.3" in text and "without a target, in `recorded/bench`: precision" in text
    assert "Recorded 20" in text and ": launch, precision." in text


def test_machines_are_told_apart():
    other = record()
    other["environment"] = {**other["environment"], "machine": {
        "kind": "cuda", "count": 1, "name": "A GPU", "backend": "nccl", "cores": 16, "threads": 16}}  # fmt: skip
    told = [line for line in table.machines({"launch": record(), "article-gpu": other}) if line]
    assert len(told) == 2 and "on A GPU, 16 cores, 1 cuda device(s)" in told[1] and told[1].endswith(": article-gpu.")


def test_the_figure_shows_met_and_missed_without_colour():
    drawn, alt = figure.limits({"launch": record()})
    bars = drawn.axes[0].patches
    assert len(bars) == 2 and {bool(bar.get_hatch()) for bar in bars} == {True, False}
    marks = {line.get_marker() for line in drawn.axes[0].lines if line.get_marker() != "None"}
    assert marks == {"o", "X"}
    assert "launch, warm: 0.0800 s (0.0800 to 0.0900), target ≤ 0.1 s, met, 1.25×." in alt
    assert "launch, theirs / ours: 36.2, target ≥ 40, missed, 0.91×." in alt
    assert "Without a bar: launch (faults): 0, met;" in alt and "hangs for ever" in alt
    assert style.svg(drawn, alt)


def test_a_reason_of_many_rows_is_told_once():
    open_rows = {f"row {number}": (">=", 1) for number in range(3)}
    why = dict.fromkeys(open_rows, "no GPU here")
    told = record(TARGETS={"warm": ("<=", 0.1), **open_rows}, reasons=lambda *_: why)
    _, alt = figure.limits({"launch": told})
    assert alt.count("no GPU here") == 1 and "launch (row 0; row 1; row 2): –, open: no GPU here" in alt


def test_no_or_few_records_make_a_page_too():
    assert figure.limits({}) is None and "Nothing is recorded yet" in table.lines({})[0]
    assert figure.limits({"precision": record(TARGETS={})}) is None
    assert "limits.svg" not in render_pages.bench_block({})
    block = render_pages.bench_block({"launch": record()})
    assert block.endswith("(recorded/bench/limits.svg)\n") and block.count("\n| launch |") == 5


def test_benchmarks_are_found_by_reading_the_folder(tmp_path):
    (tmp_path / "one.py").write_text('"""One."""\nraise SystemExit\nUNIT = "s"\ndef run(): ...\n')
    (tmp_path / "part.py").write_text("def run(): ...\n")
    assert bench.available(tmp_path) == ["one"]
    assert {"growth", "hvd", "compiler", "precision", "costmodel"} <= set(bench.available())
    assert not {"records", "table", "growth_launch", "compiler_case"} & set(bench.available())


def test_a_run_prints_writes_and_goes_on_after_a_failure(tmp_path, monkeypatch, capsys):
    sound = module(run=lambda: ({"warm": measure.summary(WARM)}, {"theirs / ours": 36.2, "faults": 2, "none": None}))
    broken = module(run=lambda: 1 / 0)
    monkeypatch.setitem(sys.modules, "benchmarks.sound", sound)
    monkeypatch.setitem(sys.modules, "benchmarks.broken", broken)
    monkeypatch.setattr(bench, "available", lambda: ["broken", "sound"])
    monkeypatch.setenv("HELPERS_RESULTS", str(tmp_path))
    monkeypatch.setattr(records, "kept_folder", lambda: tmp_path / "kept")
    assert bench.main([]) == 1
    shown = capsys.readouterr()
    assert "ZeroDivisionError" in shown.err and "failed: broken" in shown.err
    assert "target: warm: 0.0800 s (0.0800 to 0.0900), ≤ 0.1 s: met" in shown.out
    assert "target: theirs / ours: 36.2, ≥ 40: missed: theirs | got quicker" in shown.out
    assert len(list((tmp_path / "bench").glob("sound-*.json"))) == 1 and not (tmp_path / "kept").exists()
    assert bench.main(["sound", "--keep", "--label", "gpu"]) == 0
    assert list(records.read(tmp_path / "kept")) == ["sound-gpu"]
    with pytest.raises(SystemExit):
        bench.main(["nowhere"])
    assert "there are broken, sound" in capsys.readouterr().err

"""What the growth benchmarks measure with: records like real ones, sets that are mapped, memory that is counted."""

import os
from pathlib import Path

import pytest

from benchmarks import growth, growth_launch, growth_records, growth_reports, growth_sets
from helpers import measure
from helpers.records import read
from helpers.report import everything


def test_records_are_like_real_ones(tmp_path):
    growth_records.write(tmp_path, 30)
    found = read.read(tmp_path)
    assert len(found.records) == 30 and not found.skipped
    assert len({record["group"] for record in found.records}) == 3  # of twelve runs each, the last of six
    assert all(10_000 < path.stat().st_size < 25_000 for path in (tmp_path / "runs").iterdir())
    one, other = found.records[0]["measured"], found.records[12]["measured"]
    assert one["step_time_s"]["median"] != other["step_time_s"]["median"]
    made = everything.Report(found, 0.9)
    assert len(made.sites) == 1 and all(ladder.comparison for ladder in made.sites[0].ladders)


def test_a_report_is_timed_cold_and_warm(monkeypatch):
    called = []

    def report(folder, count):
        """A stand-in: the first of a folder takes 10 s, later ones a tenth of that."""
        assert len(list((Path(folder) / str(count) / "runs").iterdir())) == count
        page = Path(folder) / f"out{count}" / "all_runs.html"
        page.parent.mkdir(exist_ok=True)
        page.write_text("x" * count)
        called.append(count)
        return 10 if called.count(count) == 1 else 1

    monkeypatch.setattr(growth_reports, "report", report)
    rows, ratios = growth_reports.run(counts=(2, 14), rounds=measure.AT_LEAST)
    assert called == [2, 14] + [2, 14] * measure.AT_LEAST
    assert {name: row["median"] for name, row in rows.items()} == {"report of 2": 1, "report of 14": 1}
    assert ratios["report of 14, the first ever"] == {"median": 10, "unit": "s"}
    assert ratios["page of 14"]["median"] == pytest.approx(14e-6)


def test_the_command_that_is_timed_writes_the_page(tmp_path):
    growth_records.write(tmp_path / "3", 3)
    assert growth_reports.report(str(tmp_path), 3) > 0.1
    assert (tmp_path / "out3" / "all_runs.html").stat().st_size > 10_000


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="memory is read from Linux's /proc")
def test_memory_of_all_processes_is_counted():
    rows, ratios = growth_launch.run(ranks=(1, 2), rounds=measure.AT_LEAST)
    assert set(rows) == {"launch, 1 rank", "launch, 2 ranks", "memory, 1 rank", "memory, 2 ranks"}
    assert rows["memory, 2 ranks"]["median"] > rows["memory, 1 rank"]["median"] > growth_launch.pss("self") / 1e6 / 2
    before = growth_launch.pss("self", "Pss_Anon")
    kept = bytearray(os.urandom(1) * 40_000_000)
    assert growth_launch.pss("self", "Pss_Anon") - before > 30_000_000 and kept
    assert ratios["memory, each further rank"]["unit"] == "MB"


def test_sets_are_mapped_not_held():
    rows, ratios = growth_sets.run(sizes=(1000, 20_000))
    assert {f"{size} images: fast path" for size in ("1,000", "20,000")} == set(rows)
    assert ratios["20,000 images: mapped, in use"]["median"] > ratios["1,000 images: mapped, in use"]["median"]
    assert ratios["20,000 images: own memory"]["median"] < 40  # MB; the images are 61
    assert ratios["20,000 images: load"]["median"] < ratios["20,000 images: first load"]["median"]


def test_missed_targets_have_a_reason():
    rows = {"report of 10": measure.summary([2.0] * 5), growth.REPORT: measure.summary([7.0] * 5)}
    ratios = {f"{growth.REPORT}, the first ever": {"median": 30.0}}
    assert "10 records takes 2.0 s" in growth.reasons(rows, ratios)[growth.REPORT]
    assert set(growth.reasons(rows, ratios)) == set(growth.TARGETS)
    assert any("30 s" in note for note in growth.notes(rows, ratios))

"""What the growth benchmarks measure with: sets that are mapped, memory that is counted."""

import os

import pytest

from benchmarks import growth, growth_launch, growth_sets
from helpers import measure


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
    assert set(growth.reasons({}, {})) == set(growth.TARGETS)

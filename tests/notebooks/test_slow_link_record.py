"""What section 7 of notebook 03 shows where no slow link can be made: a run that was recorded where it can."""

import json

from helpers.paths import project_root
from helpers.profile import timeline

RECORD = project_root() / "recorded" / "ddp"


def test_the_record_has_what_the_cells_show():
    kept = json.loads((RECORD / "steps.json").read_text(encoding="utf-8"))
    backward, step, ready = kept["alone"]
    assert 0 < backward < step and sum(size for size, _ in ready) > 300_000 and len(ready) == 29
    for name, seconds in kept["seconds"].items():
        line = timeline.load(RECORD / f"{name.replace(',', '').replace(' ', '_')}.json")
        assert line.conditions.startswith("recorded ") and line.overlap()["n"] >= 5 and len(seconds) >= 5
        figure, alt = line.figure()
        assert "Hidden" in alt
    ways = ["naive", "buckets of 80 kB", "DDP, 80 kB", "DDP, 25 MB"]
    assert list(kept["seconds"]) in (ways, [*ways, "DDP, 80 kB again"])

"""The slow link: two network namespaces, and the record of it."""

import subprocess

import pytest

from helpers.cluster import twohosts
from helpers.training import models
from notebooks.scripts import slow_link

needs_link = pytest.mark.skipif(twohosts.why_not() is not None, reason=f"no slow link here: {twohosts.why_not()}")


@pytest.mark.long
@needs_link
def test_half_precision_halves_what_is_sent_and_no_cable_stays(monkeypatch):
    monkeypatch.setattr(slow_link, "LONGER", 4)
    rows = {row["method"]: row for row in slow_link.run(rate=1000, steps=1)}
    assert tuple(rows) == tuple(slow_link.METHODS) == tuple(row["method"] for row in slow_link.recorded()["rows"])
    plain, half = rows["DDP"]["sent"], (rows["DDP, fp16"]["sent"], rows["hvd, fp16"]["sent"])
    weights = sum(p.numel() for p in models.plain_convnet().parameters())
    assert 4 * weights < plain < 5 * weights
    assert all(2 * weights < sent < 2.5 * weights for sent in half) and rows["DDP, PowerSGD"]["sent"] < plain / 50
    assert all(0 < row["ms"] and 1 < row["loss"] < 4 and len(row["losses"]) == 4 for row in rows.values())
    assert twohosts.INTERFACE not in subprocess.run(["ip", "link"], capture_output=True, text=True).stdout

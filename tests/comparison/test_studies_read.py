"""What is read from the records of a study."""

import pytest

from helpers import measure
from helpers.comparison import studies


def record(batch, precision, last, rate, model="resnet18"):
    config = dict(model=model, local_batch=batch, global_batch=batch, precision=precision, channels_last=last)
    rates = [share * rate for share in (0.8, 0.9, 1, 1.1, 1.2)]
    samples = {"step_time_s": [batch / rate for rate in rates]}
    return {
        "run_id": f"{config}",
        "config": config,
        "measured": {"images_per_s": measure.summary(rates), "samples": samples},
    }


def test_speed_by_batch_is_relative_to_fp32_at_the_same_batch():
    records = [
        record(64, "fp32", False, 100),
        record(1, "fp32", False, 10),
        record(64, "O1-bf16", True, 180),
        record(1, "O1-bf16", True, 8),
        record(256, "O1-bf16", True, 500),
        record(64, "fp32", True, 120),
        record(64, "O1-bf16", True, 9, "resnet50"),
    ]
    series = studies.speed_by_batch(records, "resnet18")
    assert list(series) == ["O1-bf16 · channels last", "fp32 · channels last"]
    points = series["O1-bf16 · channels last"]
    assert [p["batch"] for p in points] == [1, 64], "without fp32 at that batch there is no ratio"
    assert [points[1][key] for key in ("ratio", "low", "high")] == pytest.approx([1.8, 1.2, 2.7])

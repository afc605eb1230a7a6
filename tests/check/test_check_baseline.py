"""The checks of 01_baseline: right answers pass, and each kind of mistake gets a hint of its own."""

import statistics

import torch
from exercises import Checks

from helpers import check


def sorts_in_place(times, warmup):
    kept = times[warmup:]
    times.sort()
    return statistics.median(kept)


def test_a_tensor_of_one_element_is_a_number():
    assert check.median_step(lambda times, warmup: torch.tensor(times[warmup:]).quantile(0.5)) is True


def sums(batches):
    return [sum(column) for column in zip(*batches, strict=True)]


class TestBaseline(Checks):
    notebook = "01_baseline.ipynb"
    exercises = {
        "median_step": ("median-step", "median_step"), "images_per_second": ("rate", "images_per_second"),
        "accuracy": ("accuracy", "accuracy"),
    }  # fmt: skip
    mistakes = {
        "median_step": [
            lambda t, w: sum(t) / len(t), lambda t, w: statistics.mean(t[w:]), lambda t, w: statistics.median(t),
            (lambda t, w: statistics.median_low(t[w:]), lambda t, w: statistics.median_high(t[w:])),
            lambda t, w: t[w:][len(t[w:]) // 2], lambda t, w: max(t), sorts_in_place, lambda t, w: None,
            lambda t, w: "0.12 s", lambda t, w: t[w:][99], None,
        ],
        "images_per_second": [
            lambda t, b: statistics.mean(b / s for s in t), lambda t, b: b / statistics.median(t),
            lambda t, b: len(t) / sum(t), lambda t, b: b / sum(t), lambda t, b: sum(t) / (b * len(t)), lambda t, b: b,
            lambda t, b: print, lambda t: 1.0,
        ],
        "accuracy": [
            lambda b: statistics.mean(r / n for r, n in b), lambda b: 100 * sums(b)[0] / sums(b)[1],
            lambda b: sums(b)[0], lambda b: sums(b)[0] // sums(b)[1], lambda b: sums(b[:-1])[0] / sums(b[:-1])[1],
            lambda b: sum(r / n * n for r, n in b) / sums(b)[1], lambda b: None,
        ],
    }  # fmt: skip

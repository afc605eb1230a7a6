"""The checks that need no ranks: right answers pass, and each kind of mistake has a hint of its own."""

import math
import statistics

import torch
import torch.nn.functional as F
from exercises import Checks

from helpers import check


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
            "sorted( => list(", lambda t, w: max(t), "middle = => times.sort()\n    middle =", lambda t, w: None,
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


class TestDataParallel(Checks):
    notebook = "02_data_parallel.ipynb"
    known = dict(torch=torch)
    exercises = {
        "scatter": ("dp-turn-scatter", "scatter"), "reduce_gradients": ("dp-turn-reduce", "reduce_gradients"),
    }  # fmt: skip
    mistakes = {
        "scatter": [
            lambda batch, devices: [piece for piece in batch.tensor_split(devices) if len(piece)],
            "[size + 1] * extra + [size] * (devices - extra) => [size] * (devices - 1) + [size + extra]",
            ("[size + 1] * extra => [size] * extra ;; batch.split => batch[: size * devices].split",
             lambda batch, devices: [batch] * devices),
            lambda batch, devices: [batch[i::devices] for i in range(devices)],
            lambda batch, devices: [piece[:, :1] for piece in batch.tensor_split(devices)],
            lambda batch, devices: 1 / 0, lambda batch, devices: None,
        ],
        "reduce_gradients": [
            "size / total => 1", "size / total => 1 / len(sizes)", "size / total => size", "size / total => 1 / size",
            lambda gradients, sizes: [], lambda gradients, sizes: gradients[0][::-1], lambda gradients, sizes: sizes[9],
        ],
    }  # fmt: skip


RAMP = "min(1, (update + 1) / (warmup + 1))"
SHARE = "share = len(some) / len(images)"


def last_from(curve, target):
    below = [k for k, (_, accuracy) in enumerate(curve) if accuracy < target]
    return curve[below[-1] + 1][0] if below and below[-1] + 1 < len(curve) else None


class TestBatch(Checks):
    notebook = "05_batch_and_accuracy.ipynb"
    known = dict(torch=torch, F=F)
    exercises = {
        "updates": ("batch-turn-updates", "updates"), "learning_rate": ("batch-turn-rate", "learning_rate"),
        "gradients_in_parts": ("batch-turn-parts", "gradients_in_parts"), "time_to": ("batch-turn-time", "time_to"),
    }  # fmt: skip
    mistakes = {
        "updates": [
            lambda n, epochs, batch: n * epochs // batch, lambda n, epochs, batch: epochs * math.ceil(n / batch),
            lambda n, epochs, batch: n // batch, lambda n, epochs, batch: n * epochs,
            lambda n, epochs, batch: epochs * n / batch, lambda n, epochs, batch: 7, lambda n, epochs, batch: None,
            lambda n: n,
        ],
        "learning_rate": [
            f"{RAMP} => min(1, update / max(1, warmup))", ("(warmup + 1) => max(1, warmup)", "(warmup + 1) => warmup"),
            f"{RAMP} => (update + 1) / (warmup + 1)", f"{RAMP} => 1", f"{RAMP} => {RAMP} ** 2",
            "lr * global_batch / base_batch => lr", "global_batch / base_batch => base_batch / global_batch",
            "global_batch / base_batch => (global_batch / base_batch) ** 0.5", "global_batch / base_batch => 3",
            lambda *given: "fast",
        ],
        "gradients_in_parts": [
            f"{SHARE} => share = 1", f"{SHARE} => share = 1 / parts",
            (f"{SHARE} => model.zero_grad()\n        {SHARE}", f"{SHARE} => model.zero_grad()\n        share = 1"),
            "model.zero_grad() => pass", f"{SHARE} => share = len(some)",
            "images.chunk(parts), labels.chunk(parts) => [images], [labels]", ".backward() => .item()",
            ".backward() => .backward()\n    for p in model.parameters():\n        p.data -= p.grad",
            (lambda model: None, 7),
        ],
        "time_to": [
            lambda curve, target: next((s for s, a in curve if a >= target), curve[-1][0]),
            lambda curve, target: next((a for s, a in curve if a >= target), None),
            (lambda curve, target: max(curve, key=lambda point: point[1])[0], last_from,
             lambda curve, target: next((s for s, a in curve if a > target), None)),
            lambda curve, target: curve[0][0], lambda curve, target: sum(a < target for s, a in curve) + 0.25,
            lambda curve, target: None, lambda curve, target: [s for s, a in curve if a >= target][0],
        ],
    }  # fmt: skip


class TestHosts(Checks):
    notebook = "09_several_machines.ipynb"
    exercises = {
        "where": ("hosts-turn-where", "where"), "ring_seconds": ("hosts-turn-ring", "ring_seconds"),
        "not_hidden": ("hosts-turn-hidden", "not_hidden"),
    }  # fmt: skip
    mistakes = {
        "where": [
            lambda rank, each: (rank % each, rank // each), lambda rank, each: (rank // each, rank),
            lambda rank, each: (rank % 2, rank % each), lambda rank, each: (rank,), lambda rank, each: 1 / 0,
        ],
        "ring_seconds": [
            lambda size, n, a, b: 2 * (n - 1) / n * size * b, lambda size, n, a, b: (n - 1) * (a + size / n * b),
            (lambda size, n, a, b: 2 * (n - 1) * (a + size * b), lambda size, n, a, b: a + size * b),
            lambda size, n, a, b: 2 * n * (a + size / n * b),
            lambda size, n, a, b: max(a, 2 * (n - 1) * (a + size / n * b)), lambda size, n, a, b: None,
        ],
        "not_hidden": [
            lambda backward, ready, costs: sum(costs), lambda backward, ready, costs: costs[-1],
            lambda backward, ready, costs: sum(costs) - backward,
            lambda backward, ready, costs: max(0, sum(costs) - backward),
            lambda backward, ready, costs: sum(costs) + 1, lambda backward, ready, costs: ready[9],
        ],
    }  # fmt: skip


def by(measure, swapped=False):
    def answer(base, other):
        a, b = measure(base), measure(other)
        return "no difference" if a == b else "faster" if (b < a) != swapped else "slower"

    return answer


class TestReport(Checks):
    notebook = "10_report.ipynb"
    known = dict(statistics=statistics)
    exercises = {
        "difference": ("report-turn-difference", "difference"), "pays_after": ("report-turn-pays", "pays_after"),
    }  # fmt: skip
    mistakes = {
        "difference": [
            (by(statistics.mean), by(max)), by(statistics.median), by(statistics.median, swapped=True),
            "other_high < low => max(other) < min(base) ;; other_low > high => min(other) > max(base)",
            lambda base, other: None, lambda base, other: True, lambda base: "faster",
        ],
        "pays_after": [
            lambda cost, before, after: cost / before,
            (lambda cost, before, after: cost / (before - after) if before != after else None,
             lambda cost, before, after: cost / (before - after)),
            lambda cost, before, after: cost * (before - after), lambda cost, before, after: None,
            lambda cost, before, after: "soon", lambda cost, before, after: 3, lambda cost: cost,
        ],
    }  # fmt: skip

"""The checks of notebook 05: right answers pass, and each kind of mistake has a hint of its own."""

import math

import torch
import torch.nn.functional as F
from exercises import Checks


def ramp(share, scale=lambda base, batch: batch / base):
    return lambda update, lr, base, batch, warmup: lr * scale(base, batch) * share(update, warmup)


def full(update, warmup):
    return min(1, (update + 1) / (warmup + 1))


def in_parts(weigh, clear_each=False, clear_first=True):
    def answer(model, images, labels, parts):
        if clear_first:
            model.zero_grad()
        for some, truth in zip(images.chunk(parts), labels.chunk(parts), strict=True):
            if clear_each:
                model.zero_grad()
            (F.cross_entropy(model(some), truth) * weigh(len(some), len(images), parts)).backward()

    return answer


def by_share(size, samples, parts):
    return size / samples


def at_once(model, images, labels, parts):
    model.zero_grad()
    F.cross_entropy(model(images), labels).backward()


def forgets_backward(model, images, labels, parts):
    model.zero_grad()
    for some in images.chunk(parts):
        model(some)


def updates_too(model, images, labels, parts):
    in_parts(by_share)(model, images, labels, parts)
    with torch.no_grad():
        for p in model.parameters():
            p -= p.grad


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
            ramp(lambda update, warmup: min(1, update / max(1, warmup))),
            (ramp(lambda update, warmup: min(1, (update + 1) / max(1, warmup))),
             ramp(lambda update, warmup: min(1, (update + 1) / warmup))),
            ramp(lambda update, warmup: (update + 1) / (warmup + 1)), ramp(lambda update, warmup: 1),
            ramp(lambda update, warmup: full(update, warmup) ** 2), ramp(full, lambda base, batch: 1),
            ramp(full, lambda base, batch: base / batch), ramp(full, lambda base, batch: math.sqrt(batch / base)),
            ramp(full, lambda base, batch: 3), lambda *given: "fast",
        ],
        "gradients_in_parts": [
            in_parts(lambda size, samples, parts: 1), in_parts(lambda size, samples, parts: 1 / parts),
            (in_parts(by_share, clear_each=True), in_parts(lambda *_: 1, clear_each=True)),
            in_parts(by_share, clear_first=False), in_parts(lambda size, samples, parts: size), at_once,
            forgets_backward, updates_too, (lambda model: None, 7),
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

"""The checks of notebook 05 accept its solutions and object to mistakes, each in words of its own."""

import math
import sys

import cloudpickle
import pytest
import torch
import torch.nn.functional as F
from exercises import assert_verdicts, objection

from helpers import check

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # else every rank imports pytest to find a mistake

EXERCISES = [
    ("updates", "batch-turn-updates"), ("learning_rate", "batch-turn-rate"),
    ("gradients_in_parts", "batch-turn-parts"), ("time_to", "batch-turn-time"),
]  # fmt: skip


@pytest.mark.parametrize("name, cell", EXERCISES)
def test_the_solution_is_right_and_the_first_attempt_is_not(name, cell, capsys):
    assert_verdicts(check, name, "05_batch_and_accuracy.ipynb", cell, capsys, torch=torch, F=F)


# -- updates ------------------------------------------------------------------------------


@pytest.mark.parametrize("mistake, words", [
    (lambda n, epochs, batch: n * epochs // batch, "does not wait"),
    (lambda n, epochs, batch: epochs * math.ceil(n / batch), "You count it"),
    (lambda n, epochs, batch: n // batch, "right for one epoch"),
    (lambda n, epochs, batch: n * epochs, "number of samples seen"),
    (lambda n, epochs, batch: epochs * n / batch, "not a whole number"),
    (lambda n, epochs, batch: 7, "Count the full batches"),
    (lambda n, epochs, batch: None, "`return`"),
    (lambda n: n, "TypeError"),
])  # fmt: skip
def test_updates_objects_to(mistake, words, capsys):
    assert words in objection(check, "updates", mistake, capsys)


# -- learning_rate --------------------------------------------------------------------------


def ramp(share, scale=lambda base, batch: batch / base):
    return lambda update, lr, base, batch, warmup: lr * scale(base, batch) * share(update, warmup)


def full(update, warmup):
    return min(1, (update + 1) / (warmup + 1))


@pytest.mark.parametrize("mistake, words", [
    (ramp(lambda update, warmup: min(1, update / max(1, warmup))), "rate of 0"),
    (ramp(lambda update, warmup: min(1, (update + 1) / max(1, warmup))), "an update too early"),
    (ramp(lambda update, warmup: (update + 1) / (warmup + 1)), "goes on rising"),
    (ramp(lambda update, warmup: 1), "Where is the warm-up"),
    (ramp(lambda update, warmup: full(update, warmup) ** 2), "rise in equal parts"),
    (ramp(full, lambda base, batch: 1), "how much has the batch grown"),
    (ramp(full, lambda base, batch: base / batch), "larger batch wants a larger rate"),
    (ramp(full, lambda base, batch: math.sqrt(batch / base)), "square-root rule"),
    (ramp(full, lambda base, batch: 3), "after the warm-up the rate is"),
    (ramp(lambda update, warmup: min(1, (update + 1) / warmup)), "too early"),
    (lambda *given: "fast", "not a number"),
])  # fmt: skip
def test_learning_rate_objects_to(mistake, words, capsys):
    assert words in objection(check, "learning_rate", mistake, capsys)


# -- gradients_in_parts -----------------------------------------------------------------------


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


@pytest.mark.parametrize("mistake, words", [
    (in_parts(lambda size, samples, parts: 1), "4 times too large"),
    (in_parts(lambda size, samples, parts: 1 / parts), "unequal sizes"),
    (in_parts(by_share, clear_each=True), "Clear the gradients once"),
    (in_parts(lambda *_: 1, clear_each=True), "Clear the gradients once"),
    (in_parts(by_share, clear_first=False), "still in the sum"),
    (in_parts(lambda size, samples, parts: size), "What share"),
    (at_once, "at once"), (forgets_backward, "no gradients"), (updates_too, "weights have changed"),
    (lambda model: None, "TypeError"), (7, "TypeError"),
])  # fmt: skip
def test_gradients_in_parts_objects_to(mistake, words, capsys):
    assert words in objection(check, "gradients_in_parts", mistake, capsys)


def test_every_hint_about_gradients_is_one_of_its_own(capsys):
    mistakes = (in_parts(lambda *_: 1), in_parts(lambda size, samples, parts: 1 / parts), at_once, forgets_backward)
    assert len({objection(check, "gradients_in_parts", mistake, capsys) for mistake in mistakes}) == len(mistakes)


# -- time_to --------------------------------------------------------------------------------


def last_from(curve, target):
    below = [k for k, (_, accuracy) in enumerate(curve) if accuracy < target]
    return curve[below[-1] + 1][0] if below and below[-1] + 1 < len(curve) else None


@pytest.mark.parametrize("mistake, words", [
    (lambda curve, target: next((s for s, a in curve if a > target), None), "exactly there"),
    (lambda curve, target: next((s for s, a in curve if a >= target), curve[-1][0]), "never got there"),
    (lambda curve, target: next((a for s, a in curve if a >= target), None), "is an accuracy"),
    (lambda curve, target: max(curve, key=lambda point: point[1])[0], "later than needed"),
    (last_from, "later than needed"),
    (lambda curve, target: curve[0][0], "not enough"),
    (lambda curve, target: sum(a < target for s, a in curve) + 0.25, "none of the times"),
    (lambda curve, target: None, "only just"),
    (lambda curve, target: [s for s, a in curve if a >= target][0], "IndexError"),
])  # fmt: skip
def test_time_to_objects_to(mistake, words, capsys):
    assert words in objection(check, "time_to", mistake, capsys)

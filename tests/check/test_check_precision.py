"""The checks of notebook 04 accept its solutions and object to mistakes, each in words of its own."""

import sys
from contextlib import nullcontext

import cloudpickle
import pytest
import torch
import torch.nn.functional as F
from exercises import assert_verdicts, objection
from torch import nn

from helpers import check

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # else every rank imports pytest to find a mistake

EXERCISES = [
    ("next_scale", "amp-turn-scale"), ("clipped_step", "amp-turn-clip"), ("accumulate", "amp-turn-accumulate")
]  # fmt: skip


@pytest.mark.parametrize("name, cell", EXERCISES)
def test_the_solution_is_right_and_the_first_attempt_is_not(name, cell, capsys):
    known = dict(torch=torch, nn=nn, F=F, nullcontext=nullcontext)
    assert_verdicts(check, name, "04_mixed_precision.ipynb", cell, capsys, **known)


# -- next_scale ---------------------------------------------------------------------------


def torchs_rule(scale, good_steps, found_inf, growth_interval):
    """What a GradScaler itself does, from its own operator."""
    scale, tracker = torch.tensor(scale), torch.tensor(good_steps, dtype=torch.int32)
    torch._amp_update_scale_(scale, tracker, torch.tensor(float(found_inf)), 2.0, 0.5, growth_interval)
    return scale.item(), tracker.item()


def test_the_rule_is_that_of_torch(capsys):
    assert check.next_scale(torchs_rule) is True


def rule(scale, good, bad, interval, *, down=0.5, up=2.0, after=0, count=True, least=0, forget=True):
    if bad:
        return scale * down, after * good
    good += count
    if good >= interval + least:
        return scale * up, 0 if forget else good
    return scale, good


@pytest.mark.parametrize("mistake, words", [
    (lambda *given: rule(*given, after=1), "in a row"),
    (lambda *given: rule(*given, least=1), "not enough to grow"),
    (lambda *given: rule(*given, least=-1), "Wait for 3"),
    (lambda *given: rule(*given, count=False), "good steps are counted"),
    (lambda *given: rule(*given, forget=False), "With the new scale"),
    (lambda *given: rule(*given, down=1), "too large: what must happen"),
    (lambda *given: rule(*given, down=0.25), "An overflow halves it"),
    (lambda *given: rule(*given, up=10), "by a factor of 2"),
    (lambda scale, good, bad, interval: (scale / 2, 0), "gets smaller after a good step"),
    (lambda scale, good, bad, interval: (scale, good, bad), "returned 3 numbers"),
    (lambda scale, good, bad, interval: scale, "TypeError"),
    (lambda scale: scale, "TypeError"),
    (3, "TypeError"),
])  # fmt: skip
def test_next_scale_objects_to(mistake, words, capsys):
    assert words in objection(check, "next_scale", mistake, capsys)


# -- clipped_step -------------------------------------------------------------------------


def step(scaler, optimizer, parameters, loss, max_norm, *, unscale=True, clip=True, by_scaler=True, updates=1):
    scaler.scale(loss).backward()
    if unscale:
        scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(parameters, max_norm if clip else float("inf"))
    scaler.step(optimizer) if by_scaler else optimizer.step()
    for _ in range(updates):
        scaler.update()
        scaler._per_optimizer_states.clear()
        if updates > 1:
            scaler.unscale_(optimizer)
    return norm


def without_a_scale(scaler, optimizer, parameters, loss, max_norm):
    loss.backward()
    norm = nn.utils.clip_grad_norm_(parameters, max_norm)
    optimizer.step()
    return norm


def never_divided(scaler, optimizer, parameters, loss, max_norm):
    scaler.scale(loss).backward()
    norm = nn.utils.get_total_norm([p.grad for p in parameters])
    optimizer.step()
    return norm


def norm_after_clipping(*given):
    step(*given)
    return nn.utils.get_total_norm([p.grad for p in given[2]])


def norm_of_the_scaled(scaler, optimizer, parameters, loss, max_norm):
    scaler.scale(loss).backward()
    norm = nn.utils.get_total_norm([p.grad for p in parameters]).clone()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(parameters, max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


@pytest.mark.parametrize("mistake, words", [
    (lambda *given: step(*given, unscale=False), "what has to come first"),
    (lambda *given: step(*given, clip=False), "clipped before the step"),
    (lambda *given: step(*given, updates=0), "lets the scaler learn"),
    (lambda *given: step(*given, by_scaler=False), "an overflow: the weights have changed"),
    (lambda *given: step(*given, updates=2), "exactly once"),
    (lambda *given: step(*given) and None, "Now return the norm"),
    (without_a_scale, "lets the scaler learn"),
    (never_divided, "still 1024 times too large"),
    (norm_after_clipping, "the norm after clipping"),
    (norm_of_the_scaled, "that of the scaled gradients"),
    (lambda *given: None, "the weights have not changed"),
    (lambda *given: 1 / 0, "ZeroDivisionError"),
    (3, "TypeError"),
])  # fmt: skip
def test_clipped_step_objects_to(mistake, words, capsys):
    assert words in objection(check, "clipped_step", mistake, capsys)


# -- accumulate ---------------------------------------------------------------------------


def accumulation(model, micro_batches, scaler, optimizer, *, sends="last", divide=True, forget=False, each=False):
    count = len(micro_batches)
    for k, (inputs, labels) in enumerate(micro_batches, 1):
        if forget:
            optimizer.zero_grad()
        send = {"last": k == count, "first": k == 1, "all": True, "none": False}[sends]
        with nullcontext() if send else model.no_sync():
            scaler.scale(F.cross_entropy(model(inputs), labels) / (count if divide else 1)).backward()
        if each or k == count:
            scaler.step(optimizer)
            scaler.update()


def without_update(model, micro_batches, scaler, optimizer):
    scaler.update, update = (lambda: None), scaler.update
    accumulation(model, micro_batches, scaler, optimizer)
    scaler.update = update


def without_a_step(model, micro_batches, scaler, optimizer):
    optimizer.step = lambda *_, **__: None
    accumulation(model, micro_batches, scaler, optimizer)


def past_the_scaler(model, micro_batches, scaler, optimizer):
    scaler.step = lambda optimizer: optimizer.step()
    scaler.update = lambda: None
    accumulation(model, micro_batches, scaler, optimizer)


@pytest.mark.parametrize("mistake, words", [
    (lambda *given: accumulation(*given, sends="all"), "4 messages were sent"),
    (lambda *given: accumulation(*given, sends="none"), "an update of its own"),
    (lambda *given: accumulation(*given, sends="first"), "different weights"),
    (lambda *given: accumulation(*given, divide=False), "4 times too large"),
    (lambda *given: accumulation(*given, forget=True), "only the last micro-batch"),
    (lambda *given: accumulation(*given, each=True, sends="all"), "several updates"),
    (without_update, "has not learnt from it"),
    (without_a_step, "the weights have not changed"),
    (past_the_scaler, "1024 times too large, a factor of the scale"),
    (lambda *given: 1 / 0, "ZeroDivisionError"),
    (3, "a function"),
])  # fmt: skip
def test_accumulate_objects_to(mistake, words, capsys):
    assert words in objection(check, "accumulate", mistake, capsys)

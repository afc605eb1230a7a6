"""The checks of notebook 04: right answers pass, and each kind of mistake has a hint of its own."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from exercises import Checks
from torch import nn

from helpers import check


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


class TestPrecision(Checks):
    notebook = "04_mixed_precision.ipynb"
    known = dict(torch=torch, nn=nn, F=F, nullcontext=nullcontext)
    exercises = {
        "next_scale": ("amp-turn-scale", "next_scale"), "clipped_step": ("amp-turn-clip", "clipped_step"),
        "accumulate": ("amp-turn-accumulate", "accumulate"),
    }  # fmt: skip
    slow = ("accumulate",)
    mistakes = {
        "next_scale": [
            lambda *given: rule(*given, after=1), lambda *given: rule(*given, least=1),
            lambda *given: rule(*given, least=-1), lambda *given: rule(*given, count=False),
            lambda *given: rule(*given, forget=False), lambda *given: rule(*given, down=1),
            lambda *given: rule(*given, down=0.25), lambda *given: rule(*given, up=10),
            lambda scale, good, bad, interval: (scale / 2, 0), lambda scale, good, bad, interval: (scale, good, bad),
            (lambda scale, good, bad, interval: scale, lambda scale: scale, 3),
        ],
        "clipped_step": [
            lambda *given: step(*given, unscale=False), lambda *given: step(*given, clip=False),
            (lambda *given: step(*given, updates=0), without_a_scale), lambda *given: step(*given, by_scaler=False),
            lambda *given: step(*given, updates=2), lambda *given: step(*given) and None, never_divided,
            norm_after_clipping, norm_of_the_scaled, lambda *given: None, lambda *given: 1 / 0, 3,
        ],
        "accumulate": [
            lambda *given: accumulation(*given, sends="all"), lambda *given: accumulation(*given, sends="none"),
            lambda *given: accumulation(*given, sends="first"), lambda *given: accumulation(*given, divide=False),
            lambda *given: accumulation(*given, forget=True),
            lambda *given: accumulation(*given, each=True, sends="all"), without_update, without_a_step,
            past_the_scaler, lambda *given: 1 / 0, 3,
        ],
    }  # fmt: skip

"""Checks of 04_mixed_precision: the scale's rule and a clipped step.

All of them run on the CPU in fp32, where a scaler does the same as anywhere else and nothing is
rounded away, so that an answer is right or it is not.
"""

import torch
import torch.nn.functional as F
from torch import nn

from .verdict import attempt, exercise, flat

STORIES = ((3, "..x.."), (3, "......."), (1, "..x."), (4, "x..x...."), (2, "xx.....x.."))  # growth interval, overflows


@exercise
def next_scale(answer, say):
    """`answer(scale, good_steps, found_inf, growth_interval)` -> (the next scale, the new count of good steps)."""
    for interval, story in STORIES:
        scale, good = 1024.0, 0.0
        for sign in story:
            bad = sign == "x"
            case = say("case", scale=scale, good=good, interval=interval, bad=bad)
            found, problem = attempt(lambda *given: tuple(map(float, answer(*given))), scale, int(good), bad, interval)
            yield case, problem or (len(found) != 2 and say("two", n=len(found)))
            (got, count), (wanted, left) = found, _rule(scale, good, bad, interval)
            yield case, bad and got >= scale and say("too large", got=got)
            yield case, bad and got != wanted and say("halves", got=got)
            yield case, bad and count != left and say("in a row", count=count)
            yield case, wanted == scale < got and say("early", now=good + 1, interval=interval)
            yield case, not bad and got < scale and say("smaller")
            yield case, got == scale < wanted and say("late", now=good + 1)
            yield case, got != wanted and say("factor", got=got)
            yield case, count != left and say("otherwise" if left else "kept", count=count, now=good + 1)
            scale, good = wanted, left


def _rule(scale, good_steps, found_inf, interval):
    """What torch._amp_update_scale_ does, with its factors of 2 and 1/2."""
    if found_inf:
        return scale / 2, 0.0
    return (scale * 2, 0.0) if good_steps + 1 == interval else (scale, good_steps + 1.0)


STEPS = ((1024.0, 0.5, True), (2.0**16, 1e3, True), (64.0, 0.01, True), (4096.0, 0.5, False))  # scale, norm, finite


@exercise
def clipped_step(answer, say):
    """`answer(scaler, optimizer, parameters, loss, max_norm)` must make one update; it returns the true norm."""
    for scale, max_norm, finite in STEPS:
        case = say("case" if finite else "overflow", scale=scale, max_norm=max_norm)
        net, loss = _small_problem()
        gradient = flat(torch.autograd.grad(loss(net), list(net.parameters())))
        norm, before = gradient.norm().item(), flat(net.parameters())
        optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1)
        given = loss(net) if finite else loss(net) * float("inf")
        got, problem = attempt(answer, scaler, optimizer, list(net.parameters()), given, max_norm)
        yield case, problem
        moved = before - flat(net.parameters())
        yield case, not finite and moved.any() and say("moved")
        wanted = gradient * min(1.0, max_norm / norm)
        if finite and not torch.allclose(moved, wanted, rtol=1e-3, atol=1e-6):
            yield case, not moved.any() and say("unmoved")
            yield case, not moved.isfinite().all() and say("infinite")
            factor = (moved.norm() / wanted.norm()).item()
            yield case, abs(factor * scale - 1) < 1e-2 and say("scaled clip", scale=scale)
            yield case, abs(moved.norm().item() / (norm * scale) - 1) < 1e-2 and say("scaled", scale=scale)
            longer = factor > 1 and torch.allclose(moved / factor, wanted, rtol=1e-2, atol=1e-6)
            yield case, say("unclipped" if longer else "long", factor=factor)
        now, next_ = scaler.get_scale(), 2 * scale if finite else scale / 2  # it grows after every good step here
        yield case, now != next_ and say("same scale" if now == scale else "other scale", now=now, wanted=next_)
        value, problem = attempt(float, got)
        yield case, finite and problem and say("no norm", kind=type(got).__name__)
        if finite and abs(value / norm - 1) > 1e-3:
            yield case, abs(value / (norm * scale) - 1) < 1e-3 and say("norm scaled")
            clipped = abs(value / min(norm, max_norm) - 1) < 1e-2
            yield case, say("norm clipped" if clipped else "norm", value=value, norm=norm)


def _small_problem():
    """(a net, a function from it to its loss): the same ones every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net, inputs = nn.Linear(4, 3), 3 * torch.randn(6, 4)
    return net, lambda net: F.cross_entropy(net(inputs), torch.tensor([0, 1, 2, 1, 0, 2]))

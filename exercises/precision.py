"""Checks of 04_mixed_precision: the scale's rule and a clipped step.

All of them run on the CPU in fp32, where a scaler does the same as anywhere else and nothing is
rounded away, so that an answer is right or it is not.
"""

import torch
import torch.nn.functional as F
from torch import nn

from .verdict import attempt, exercise, flat

STORIES = (  # (growth interval, overflows from step to step)
    (3, "..x.."),
    (3, "......."),
    (1, "..x."),
    (4, "x..x...."),
    (2, "xx.....x.."),
)
START = 1024.0


@exercise("A scaler by your rule would go the way of PyTorch's, step by step.")
def next_scale(answer):
    """`answer(scale, good_steps, found_inf, growth_interval)` -> (the next scale, the new count of good steps)."""
    for interval, story in STORIES:
        scale, good = START, 0
        for sign in story:
            bad = sign == "x"
            wanted = _rule(scale, good, bad, interval)
            got, problem = attempt(lambda *given: tuple(map(float, answer(*given))), scale, int(good), bad, interval)
            if not problem and len(got) != 2:
                problem = f"your function returned {len(got)} numbers; return two, the scale and the count"
            yield f"scale {scale:g}, {good:g} good step(s), growth_interval {interval}", problem
            if got != wanted:
                told = f"scale {scale:g}, {good:g} good step(s) so far, growth_interval {interval}, found_inf {bad}"
                yield f"{told}: {_wrong_scale(got, wanted, scale, good, bad, interval)}"
            scale, good = wanted


def _rule(scale, good_steps, found_inf, interval):
    """What torch._amp_update_scale_ does, with its factors of 2 and 1/2."""
    if found_inf:
        return scale / 2, 0.0
    if good_steps + 1 == interval:
        return scale * 2, 0.0
    return scale, good_steps + 1.0


def _wrong_scale(got, wanted, scale, good, bad, interval):
    if bad and got[0] >= scale:
        return f"the next scale is {got[0]:g}. This scale was too large: what must happen to it?"
    if bad and got[0] != wanted[0]:
        return f"the next scale is {got[0]:g}. An overflow halves it, no more and no less."
    if bad:
        return f"{got[1]:g} good steps are left after an overflow. The good steps have to be in a row."
    if wanted[0] == scale and got[0] > scale:
        return f"the scale grows after {good + 1:g} good step(s), this one included. Wait for {interval} of them."
    if got[0] < scale:
        return "the scale gets smaller after a good step. Only an overflow makes it smaller."
    if wanted[0] > scale and got[0] == scale:
        return f"this step is good as well, so there are now {good + 1:g} in a row. Is that not enough to grow?"
    if got[0] != wanted[0]:
        return f"the next scale is {got[0]:g}. It grows by a factor of 2."
    if wanted[1] == 0:
        return f"{got[1]:g} good steps are left after the scale has grown. With the new scale none has been made yet."
    return f"{got[1]:g} good steps are counted; with this one there are {good + 1:g}."


STEPS = (  # (scale, max_norm, is the loss finite?)
    (1024.0, 0.5, True),
    (2.0**16, 1e3, True),
    (64.0, 0.01, True),
    (4096.0, 0.5, False),
)
OVERFLOWN = "the weights have changed, with gradients that were inf. Let the scaler decide: scaler.step(optimizer)."


@exercise("The norm is that of the true gradients; an overflow leaves the weights alone and halves the scale.")
def clipped_step(answer):
    """`answer(scaler, optimizer, parameters, loss, max_norm)` must make one update; it returns the true norm."""
    for scale, max_norm, finite in STEPS:
        told = f"scale {scale:g}, max_norm {max_norm:g}"
        told = told if finite else f"{told}, an overflow"
        net, loss = _small_problem()
        wanted, norm = _clipped_by_hand(net, loss(net), max_norm)
        before = flat(net.parameters())
        optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1)
        given = loss(net) if finite else loss(net) * float("inf")
        got, problem = attempt(answer, scaler, optimizer, list(net.parameters()), given, max_norm)
        yield told, problem
        moved = before - flat(net.parameters())
        yield told, _wrong_step(moved, wanted, norm, scale) if finite else moved.any() and OVERFLOWN
        yield told, _wrong_update(scaler, scale, finite)
        yield told, finite and _wrong_norm(got, norm, max_norm, scale)


def _small_problem():
    """(a net, a function from it to its loss): the same ones every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net, inputs = nn.Linear(4, 3), 3 * torch.randn(6, 4)
    return net, lambda net: F.cross_entropy(net(inputs), torch.tensor([0, 1, 2, 1, 0, 2]))


def _clipped_by_hand(net, loss, max_norm):
    """(the update with a learning rate of 1, the norm before clipping) without any scale."""
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])
    norm = gradient.norm().item()
    return gradient * min(1.0, max_norm / norm), norm


def _wrong_step(moved, wanted, norm, scale):
    if torch.allclose(moved, wanted, rtol=1e-3, atol=1e-6):
        return None
    if not moved.any():
        return "the weights have not changed. Which call makes the update?"
    if not moved.isfinite().all():
        return "the weights are not finite any more."
    factor = (moved.norm() / wanted.norm()).item()
    if abs(factor * scale - 1) < 1e-2:
        return (
            f"the update is {scale:g} times too small, a factor of the scale. What clip_grad_norm_ saw was still "
            "multiplied by it: what has to come first?"
        )
    if abs(moved.norm().item() / (norm * scale) - 1) < 1e-2:
        return f"the gradients were still {scale:g} times too large, a factor of the scale. Who divides by it again?"
    if factor > 1 and torch.allclose(moved / factor, wanted, rtol=1e-2, atol=1e-6):
        return f"the update is {factor:.3g} times too large. Have the gradients been clipped before the step was made?"
    return f"the update is {factor:.3g} times as long as it should be."


def _wrong_update(scaler, scale, finite):
    now, wanted = scaler.get_scale(), 2 * scale if finite else scale / 2  # it grows after every good step here
    if now == wanted:
        return None
    if now == scale:
        return "the scale is still the same afterwards. Which call lets the scaler learn from this step?"
    return f"the scale is {now:g} afterwards, it should be {wanted:g}. Call scaler.update() exactly once."


def _wrong_norm(got, norm, max_norm, scale):
    value, problem = attempt(float, got)
    if problem:
        return f"the update is right. Now return the norm; this is a {type(got).__name__}."
    if abs(value / norm - 1) < 1e-3:
        return None
    if abs(value / (norm * scale) - 1) < 1e-3:
        return "the norm is that of the scaled gradients. Take it after they have been divided."
    if abs(value / min(norm, max_norm) - 1) < 1e-2:
        return f"you return {value:.3g}, the norm after clipping. clip_grad_norm_ returns the one before."
    return f"you return {value:.3g}; the norm of the true gradients is {norm:.3g}."

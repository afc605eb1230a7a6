"""Which learning rate a step gets: a peak that follows the batch, a warm-up, and a decay.

Linear scaling and warm-up: Goyal et al. (arXiv:1706.02677); square-root scaling: Krizhevsky (arXiv:1404.5997); cosine
decay: Loshchilov and Hutter (arXiv:1608.03983); constant with a cooldown: Hägele et al. (arXiv:2405.18392).
"""

import math

from ..config import peak_lr

__all__ = ["COOLDOWN", "factor", "peak_lr"]
COOLDOWN = 0.3  # the last share of the updates after the warm-up, in which "cooldown" decays


def factor(step, total_steps, schedule="constant", warmup_steps=0) -> float:
    """The share of the peak rate, above 0 and at most 1, that update number `step` (from 0) gets.

    The warm-up rises in equal parts and reaches the peak at update `warmup_steps`; the decay
    covers the updates after it, and would reach 0 one update after the last.
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    left = 1 - (step - warmup_steps) / max(1, total_steps - warmup_steps)
    if schedule == "linear":
        return left
    if schedule == "cooldown":
        return min(1.0, left / COOLDOWN)
    if schedule == "cosine":
        return (1 - math.cos(math.pi * left)) / 2
    return 1.0

"""Checks of 05_batch_and_accuracy: updates, the learning rate of a large batch, time to accuracy."""

import math

from helpers.training import schedules

from .verdict import exercise, formula, number, same

updates = formula(
    "updates",
    "`answer(samples, epochs, global_batch)`: updates of the weights; incomplete batches are dropped.",
    ((1437, 12, 64), (1437, 12, 256), (50_000, 1, 1024), (100, 3, 64), (128, 2, 64)),
    lambda samples, epochs, batch: epochs * (samples // batch),
    number,
    **{
        "seen": lambda samples, epochs, batch: samples * epochs,
        "fraction": lambda value, *_: value != int(value),
        "one epoch": lambda samples, epochs, batch: samples // batch,
        "across": lambda samples, epochs, batch: samples * epochs // batch,
        "last": lambda samples, epochs, batch: epochs * math.ceil(samples / batch),
    },
)

RATES = ((0.02, 64, 256, 5), (0.1, 256, 512, 0), (0.05, 64, 64, 3), (0.1, 256, 8192, 1))  # lr, base, batch, warm-up


@exercise
def learning_rate(answer, say):
    """`answer(update, lr, base_batch, global_batch, warmup)`: linear scaling, after a linear warm-up."""
    for lr, base, batch, warmup in RATES:
        peak = schedules.peak_lr(lr, "linear", batch, base)
        wanted = [peak * schedules.factor(update, 100, warmup_steps=warmup) for update in range(warmup + 4)]
        case, found = say("case", lr=lr, base=base, batch=batch, warmup=warmup), []
        for update in range(len(wanted)):
            value, problem = number(answer, update, lr, base, batch, warmup)
            yield case, problem
            found.append(value)
        if same(found, wanted):
            continue
        last = found[-1]
        yield case, max(found) > peak * (1 + 1e-6) and last > found[-2] and say("rises", peak=peak)
        yield case, same(last, lr) and not same(lr, peak) and say("small", last=last)
        yield case, same(last, lr * base / batch) and not same(lr, peak) and say("falls", last=last)
        yield case, same(last, lr * math.sqrt(batch / base)) and not same(lr, peak) and say("root")
        yield case, not same(last, peak) and say("peak", last=last, peak=peak)
        yield case, same(found, [peak] * len(found)) and say("no warm-up", peak=peak)
        yield case, found[0] == 0 and say("zero")
        yield case, warmup > 0 and same(found[warmup - 1], peak) and say("early", warmup=warmup)
        yield case, say("otherwise", first=", ".join(f"{value:.3g}" for value in found[: warmup + 1]))


CURVES = (  # (seconds, accuracy) of each evaluation
    ((1.0, 0.3), (2.0, 0.7), (3.0, 0.9), (4.0, 0.95)),
    ((2.5, 0.2), (5.0, 0.92), (7.5, 0.88), (10.0, 0.97)),
    ((1.5, 0.1), (3.0, 0.4), (4.5, 0.6)),
    ((2.0, 0.95),),
)


def _reached(curve, target):
    return [seconds for seconds, accuracy in curve if accuracy >= target]


def _arrival(curve, target):
    return next(iter(_reached(curve, target)), None)


time_to = formula(
    "time_to",
    "`answer(curve, target)`: seconds until the first (seconds, accuracy) that reached `target`, or None.",
    tuple((curve, target) for curve in CURVES for target in (0.9, curve[-1][1])),
    _arrival,
    **{
        "never": lambda value, curve, target: not _reached(curve, target),
        "just": lambda value, curve, target: (
            (value is None or value in _reached(curve, target)) and dict(curve)[_arrival(curve, target)] == target
        ),
        "none": lambda value, curve, target: value is None,
        "accuracy": lambda value, curve, target: value in dict(curve).values(),
        "no time": lambda value, curve, target: value not in dict(curve),
        "later": lambda value, curve, target: value in _reached(curve, target),
    },
)

"""Checks of 05_batch_and_accuracy: updates, the learning rate of a large batch, time to accuracy."""

import math

from helpers.training import schedules

from .verdict import attempt, exercise, number

RUNS = ((1437, 12, 64), (1437, 12, 256), (50_000, 1, 1024), (100, 3, 64), (128, 2, 64))  # samples, epochs, batch
RATES = ((0.02, 64, 256, 5), (0.1, 256, 512, 0), (0.05, 64, 64, 3), (0.1, 256, 8192, 1))  # lr, base, batch, warm-up
CURVES = (  # (seconds, accuracy) of each evaluation
    ((1.0, 0.3), (2.0, 0.7), (3.0, 0.9), (4.0, 0.95)),
    ((2.5, 0.2), (5.0, 0.92), (7.5, 0.88), (10.0, 0.97)),
    ((1.5, 0.1), (3.0, 0.4), (4.5, 0.6)),
    ((2.0, 0.95),),
)
TARGET = 0.9


@exercise("Four times the batch makes a quarter of the updates, or a little less.")
def updates(answer):
    """`answer(samples, epochs, global_batch)`: updates of the weights, where incomplete batches are dropped."""
    for samples, epochs, batch in RUNS:
        value, problem = number(answer, samples, epochs, batch)
        if problem is None and value != epochs * (samples // batch):
            problem = _hint_updates(value, samples, epochs, batch)
        yield f"{samples:,} samples, {epochs} epoch(s), global batch {batch:,}", problem


def _hint_updates(value, samples, epochs, batch):
    if value == samples * epochs:
        return f"{value:,.0f} is the number of samples seen. How many of them go into one update?"
    if value != int(value):
        return f"{value:g} is not a whole number. What happens to the samples that do not fill a batch?"
    if value == samples // batch and epochs > 1:
        return f"{value:.0f} is right for one epoch. There are {epochs}."
    if value == samples * epochs // batch:
        return "what is left over in one epoch is dropped; it does not wait for the next one. First count one epoch."
    if value == epochs * math.ceil(samples / batch):
        return "the last batch of an epoch is not full, and the loader drops it. You count it."
    return f"{value:g} updates is not the number. Count the full batches of one epoch first."


@exercise("The peak grows with the batch, and the first updates come near it step by step.")
def learning_rate(answer):
    """`answer(update, lr, base_batch, global_batch, warmup)`: linear scaling, after a linear warm-up."""
    for lr, base, batch, warmup in RATES:
        peak = schedules.peak_lr(lr, "linear", batch, base)
        wanted = [peak * schedules.factor(update, 100, warmup_steps=warmup) for update in range(warmup + 4)]
        found = []
        for update in range(len(wanted)):
            value, problem = number(answer, update, lr, base, batch, warmup)
            yield f"update {update} of a warm-up of {warmup}", problem
            found.append(value)
        case = f"lr {lr:g} for a batch of {base}, scaled to {batch:,}, warm-up of {warmup}"
        yield case, _hint_rate(found, wanted, lr, base, batch, warmup)


def _hint_rate(found, wanted, lr, base, batch, warmup):
    peak, last = wanted[-1], found[-1]

    def are(values):
        return all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12) for a, b in zip(found, values, strict=True))

    if are(wanted):
        return None
    if max(found) > peak * (1 + 1e-6) and found[-1] > found[-2]:
        return f"the rate goes on rising after the warm-up, above the peak of {peak:g}."
    if math.isclose(last, lr, rel_tol=1e-6):
        return f"after the warm-up the rate is {last:g}, as for the small batch. By how much has the batch grown?"
    if math.isclose(last, lr * base / batch, rel_tol=1e-6):
        return f"the rate falls to {last:g}. A larger batch wants a larger rate."
    if math.isclose(last, lr * math.sqrt(batch / base), rel_tol=1e-6):
        return "this is the square-root rule. The linear one grows in proportion to the batch."
    if not math.isclose(last, peak, rel_tol=1e-6):
        return f"after the warm-up the rate is {last:g}, not {peak:g}."
    if are([peak] * len(found)):
        return f"the very first update already has the peak of {peak:g}. Where is the warm-up?"
    if found[0] == 0:
        return "the first update has a rate of 0: a whole batch is computed, and the weights stay where they are."
    if warmup and math.isclose(found[warmup - 1], peak, rel_tol=1e-6):
        return f"the peak is reached an update too early. It belongs to update {warmup}, the first after the warm-up."
    told = ", ".join(f"{value:.3g}" for value in found[: warmup + 1])
    return f"the first rates are {told}. They must rise in equal parts, from one part at update 0."


@exercise("The first evaluation that reaches the target counts, and a run that never does has no time.")
def time_to(answer):
    """`answer(curve, target)`: seconds until the first (seconds, accuracy) that has reached `target`, or None."""
    for curve in CURVES:
        for target in (TARGET, curve[-1][1]):
            wanted = next((seconds for seconds, accuracy in curve if accuracy >= target), None)
            value, problem = attempt(answer, list(curve), target)
            if problem is None and value != wanted:
                problem = _hint_time(value, wanted, curve, target)
            told = ", ".join(f"{accuracy:.0%} after {seconds:g} s" for seconds, accuracy in curve)
            yield f"Target {target:.0%}, measured {told}", problem


def _hint_time(value, wanted, curve, target):
    seconds = [at for at, _ in curve]
    if wanted is None:
        return f"this run never got there, yet your answer is {value!r}. Without an arrival there is no time: give None"
    exactly = dict(curve)[wanted] == target
    if value is None:
        if exactly:
            return "None, but the target was reached, if only just. That counts as well"
        return "None, but the target was reached"
    if value in [accuracy for _, accuracy in curve]:
        return f"{value!r} is an accuracy. The question is when"
    if value not in seconds:
        return f"{value!r} is none of the times. Give the seconds of an evaluation"
    reached = dict(curve)[value]
    if value > wanted and exactly:
        return f"{value:g} s is later than needed. It was exactly there before, and that counts"
    if value > wanted:
        return f"{value:g} s is later than needed. It was there before, although it may have dipped or gone on rising"
    return f"after {value:g} s it was at {reached:.0%}, which is not enough"

"""The numbers of the cost model for this machine, from two short measurements.

    answers = launch(measure.measure, 2, make_model, (16, 64), threads=1)
    fitted = fit(answers, batches=(16, 64))
    costmodel.step(fitted.compute, fitted.link, 2, 32).seconds

The two are: steps of every rank for itself, at two batch sizes, and an all-reduce of growing tensors, some of them
beside a backward pass, which shows what does not overlap.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from ..measure import AT_LEAST, median_interval
from .model import Compute, Link, all_reduce


@dataclass(frozen=True)
class Fit:
    """The fitted model, and what it was fitted from.

    Attributes:
        compute, link: see `model`. devices: ranks that measured. sweep: {bytes: seconds of an all-reduce}, medians.
        residuals: {bytes: fitted / measured - 1} of the sweep. intervals: {bytes: (low, high)}, the 95% intervals of
            its medians, if there are enough rounds.
    """

    compute: Compute
    link: Link
    devices: int
    sweep: dict
    residuals: dict
    intervals: dict = field(default_factory=dict)


def restored(kept) -> Fit:
    """A Fit from its `dataclasses.asdict`, also by way of JSON."""
    tables = {
        name: {int(size): value for size, value in kept.get(name, {}).items()}
        for name in ("sweep", "residuals", "intervals")
    }
    return Fit(Compute(**kept["compute"]), Link(**kept["link"]), kept["devices"], **tables)


def fit(answers, batches) -> Fit:
    """The cost model from what `measure` returned on each rank.

    Raises:
        ValueError: fewer than two batch sizes or ranks.
    """
    ranks = len(answers)
    if ranks < 2 or len(set(batches)) < 2:
        raise ValueError(f"{ranks} rank(s), batches {batches}: a fit needs two ranks and two batch sizes")

    def samples(kind):
        """{key: samples of all ranks, which measured at the same time, as an array of [rank, round, …]}"""
        return {key: np.array([of[kind][key] for of in answers]) for key in answers[0][kind]}

    one = samples("one")
    points = {batch: np.median(steps.mean(0), 0) for batch, steps in one.items()}
    rounds = {size: seconds.mean(0).tolist() for size, seconds in samples("sweep").items()}
    sweep = {size: float(np.median(seconds)) for size, seconds in rounds.items()}
    backward = one[batches[-1]][:, :, 1].mean(0)
    lost = []  # by a backward pass beside an all-reduce, in seconds a byte; also for the part that outlasts it
    for size, seconds in samples("beside").items():
        beside = seconds.mean(0)
        lost.extend((beside - backward) * np.maximum(1, sweep[size] / beside) / size)
    start, slope = line(sweep)
    turns = 2 * (ranks - 1)  # messages of a ring, each of 1/ranks of the tensor
    [(copied, copies)] = samples("copy").items()
    link = Link(
        start / turns,
        slope * ranks / turns,
        max(0.0, float(np.median(lost))),
        float(np.median(copies)) / copied,
        float(np.median(samples("broadcast")[0].max(0))) / math.ceil(math.log2(ranks)),
    )
    ready = np.median(samples("ready")[0], (0, 1)).tolist()
    spread = []  # around the mean of the ranks in a round, which leaves out what slows all of them
    for steps in (of.sum(2) for of in one.values()):
        unbiased = (ranks / (ranks - 1)) ** 0.5  # the mean is drawn towards each of its few ranks
        spread.extend(((steps / steps.mean(0) - 1) * unbiased).flatten().tolist())
    compute = Compute(
        *(line({batch: parts[part] for batch, parts in points.items()}) for part in range(2)),
        update=float(np.median([parts[2] for parts in points.values()])),
        gradients=tuple(zip(answers[0]["bytes"], ready, strict=True)),
        broadcasts=answers[0]["broadcasts"],
        spread=tuple(spread),
    )
    residuals = {size: sum(all_reduce(size, ranks, link)) / seconds - 1 for size, seconds in sweep.items()}
    intervals = {size: median_interval(seconds) for size, seconds in rounds.items() if len(seconds) >= AT_LEAST}
    return Fit(compute, link, ranks, sweep, residuals, intervals)


def line(points) -> tuple:
    """(start, slope), neither below 0, of the line through {x: y > 0} with the least sum of squared relative errors.

    Relative errors, so that small tensors count as much as large ones.
    """
    x, y = np.array(list(points)), np.array(list(points.values()))
    slope, start = np.polyfit(x, y, 1, w=1 / y)
    if slope < 0:
        return float(np.average(y, weights=y**-2.0)), 0.0
    if start < 0:
        return 0.0, float(np.sum(x / y) / np.sum((x / y) ** 2))
    return float(start), float(slope)

"""The numbers of the cost model for this machine, from two short measurements.

    answers = launch(measure.measure, 2, make_model, (16, 64), threads=1)
    fitted = fit(answers, batches=(16, 64))
    costmodel.step(fitted.compute, fitted.link, 2, 32).seconds

The two are: steps of every rank for itself, at two batch sizes, and an all-reduce of growing tensors, some of them
beside a backward pass, which shows what does not overlap.
"""

import itertools
import math
import statistics
from dataclasses import asdict, dataclass, field

from ..measure import AT_LEAST, median_interval
from .model import Compute, Link, all_reduce


@dataclass(frozen=True)
class Fit:
    """The fitted model, and what it was fitted from.

    Attributes:
        compute, link: see `model`. devices: ranks that measured. batches: the two batch sizes.
        points: {batch: (forward, backward, update)} and sweep: {bytes: seconds}, medians.
        residuals: {bytes: fitted / measured - 1} of the sweep. intervals: {bytes: (low, high)}, the 95% intervals of
            its medians, if there are enough rounds; older records have none.
    """

    compute: Compute
    link: Link
    devices: int
    batches: tuple
    points: dict
    sweep: dict
    residuals: dict
    intervals: dict = field(default_factory=dict)

    def as_dict(self) -> dict:
        """For JSON; `restored` reads it."""
        return asdict(self)


def restored(kept) -> Fit:
    """A Fit from what `as_dict` gave, also by way of JSON."""
    compute = {name: _frozen(value) for name, value in kept["compute"].items()}
    tables = {
        name: {int(key): _frozen(value) for key, value in kept[name].items()}
        for name in ("points", "sweep", "residuals", "intervals")
        if name in kept
    }
    return Fit(Compute(**compute), Link(**kept["link"]), kept["devices"], tuple(kept["batches"]), **tables)


def _frozen(value):
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else value


# -- fitting ------------------------------------------------------------------------------


def fit(answers, batches) -> Fit:
    """The cost model from what `measure` returned on each rank.

    Raises:
        ValueError: fewer than two batch sizes or ranks.
    """
    if len(answers) < 2 or len(set(batches)) < 2:
        raise ValueError(f"{len(answers)} rank(s), batches {batches}: a fit needs two ranks and two batch sizes")
    points = {batch: tuple(_middle(answers, "one", batch, part) for part in range(3)) for batch in batches}
    sweep = {size: _middle(answers, "sweep", size, 0) for size in answers[0]["sweep"]}
    rounds = {size: _rounds(answers, "sweep", size, 0) for size in sweep}
    intervals = {size: median_interval(of) for size, of in rounds.items() if len(of) >= AT_LEAST}
    pairs = itertools.combinations(sorted(points.items()), 2)
    first, last = max(pairs, key=lambda pair: pair[1][0] - pair[0][0])
    lines = [_line_through((first[0], first[1][part]), (last[0], last[1][part])) for part in range(2)]
    copied, seconds = answers[0]["copy"][0], [of["copy"][1] for of in answers]
    link, residuals = fit_link(sweep, len(answers))
    copying = [statistics.median(kind) / copied for kind in zip(*sum(seconds, []), strict=True)]
    turns = zip(*(of["handed"] for of in answers), strict=True)
    handed = statistics.median(max(turn) for turn in turns) / math.ceil(math.log2(len(answers)))
    link = Link(link.latency, link.per_byte, _taken(answers, sweep), *copying, handed)
    columns = zip(*(moment for of in answers for moment in of["ready"]), strict=True)
    ready = [statistics.median(column) for column in columns]
    compute = Compute(
        *lines,
        update=statistics.median(of[2] for of in points.values()),
        gradients=tuple(zip(answers[0]["bytes"], ready, strict=True)),
        spread=_spread(answers, batches),
        broadcasts=answers[0]["broadcasts"],
    )
    return Fit(compute, link, len(answers), tuple(batches), points, sweep, residuals, intervals)


def fit_link(seconds, devices) -> tuple:
    """(Link, {bytes: fitted / measured - 1}) from {bytes: seconds of an all-reduce}, taken as a ring's.

    The line is fitted to relative errors, so that small tensors count as much as large ones.
    """
    start, slope = line(seconds)
    turns = 2 * (devices - 1)
    link = Link(start / turns, slope * devices / turns)
    return link, {size: sum(all_reduce(size, devices, link)) / s - 1 for size, s in seconds.items()}


def line(points) -> tuple:
    """(start, slope) of the line through {x: y} with the least sum of squared relative errors, neither below 0."""
    weights = {x: 1 / y**2 for x, y in points.items() if y > 0}
    if len(weights) < 2:
        raise ValueError(f"a line needs two points with positive values, not {points}")
    total = sum(weights.values())
    x0 = sum(w * x for x, w in weights.items()) / total
    y0 = sum(w * points[x] for x, w in weights.items()) / total
    slope = sum(w * (x - x0) * (points[x] - y0) for x, w in weights.items())
    slope /= sum(w * (x - x0) ** 2 for x, w in weights.items())
    if slope < 0:
        return y0, 0.0
    if y0 < slope * x0:  # through the origin
        return 0.0, sum(w * x * points[x] for x, w in weights.items()) / sum(w * x * x for x, w in weights.items())
    return y0 - slope * x0, slope


def _line_through(first, last):
    slope = max(0.0, (last[1] - first[1]) / (last[0] - first[0]))
    return max(0.0, first[1] - slope * first[0]), slope


def _middle(answers, kind, key, part):
    return statistics.median(_rounds(answers, kind, key, part))


def _rounds(answers, kind, key, part):
    """For each round the mean over the ranks, which measured at the same time."""
    rounds = zip(*([sample[part] for sample in of[kind][key]] for of in answers), strict=True)
    return [statistics.fmean(ranks) for ranks in rounds]


def _taken(answers, sweep):
    """Seconds a byte that a backward pass lasts longer beside an all-reduce, also for the part that outlasts it."""
    lost = []
    for size in answers[0]["beside"]:
        for turn in zip(*(of["beside"][size] for of in answers), strict=True):
            alone, beside = (statistics.fmean(column) for column in zip(*turn, strict=True))
            lost.append((beside - alone) * max(1, sweep[size] / beside) / size)
    return max(0.0, statistics.median(lost))


def _spread(answers, batches):
    """How far a rank's step is from the mean of the ranks in the same round: without what slows all of them.

    √(n/(n-1)) makes up for the mean being drawn towards each of its few ranks.
    """
    n = len(answers)
    found = []
    for batch in batches:
        for turn in zip(*(of["one"][batch] for of in answers), strict=True):
            steps = [sum(parts) for parts in turn]
            found += [(s / statistics.fmean(steps) - 1) * (n / (n - 1)) ** 0.5 for s in steps]
    return tuple(found)

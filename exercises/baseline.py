"""Checks of 01_baseline: a typical step, the clock of a device with a queue, and what a faster part gains."""

from math import inf
from statistics import mean, median

from .verdict import attempt, exercise, formula, number, same

# In the order of measuring: slow first steps, and one that was disturbed.
ODD = (0.9, 0.4, 0.12, 0.1, 0.8, 0.11, 0.13)
EVEN = (0.9, 0.8, 0.12, 0.1, 0.7, 0.16)
WORK = [90, 40, 10, 12, 11, 10, 14]  # ms that a device needs for each step
ORDERS = 1  # ms that Python needs to queue a step


def _given(function, times, warmup):
    """The answer, or nan where it has changed the list that it was given."""
    before = list(times)
    value, problem = number(function, times, warmup)
    return (value if times == before else None), problem


def _middle(times, warmup):
    kept = times[warmup:]
    return kept[len(kept) // 2]


median_step = formula(
    "median_step",
    "`function(times, warmup)`: the median of `times` (a list, s) without its first `warmup`.",
    ((ODD, 2), (EVEN, 2), (ODD, 0), ((0.3, 0.2), 1)),
    lambda times, warmup: median(times[warmup:]),
    _given,
    **{
        "changed": lambda value, times, warmup: value is None,
        "mean of all": lambda times, warmup: mean(times),
        "mean": lambda times, warmup: mean(times[warmup:]),
        "all": lambda times, warmup: median(times),
        "half": lambda value, times, w: len(times[w:]) % 2 == 0 and any(same(value, it) for it in _halves(times[w:])),
        "unsorted": lambda value, times, w: any(same(value, it) for it in (_middle(times, w), mean(_pair(times[w:])))),
    },
)


def _pair(kept):
    """The two in the middle."""
    return kept[(len(kept) - 1) // 2 : len(kept) // 2 + 1]


def _halves(kept):
    return _pair(sorted(kept))


class Device:
    """A device that works through a queue, on a clock of its own in ms; something is queued already."""

    def __init__(self):
        self.now, self.free, self.steps = 0, 25, 0

    def step(self):
        self.now += ORDERS
        self.free = max(self.free, self.now) + WORK[self.steps]
        self.steps += 1

    def clock(self):
        return self.now

    def synchronize(self):
        self.now = max(self.now, self.free)


@exercise
def timed_steps(function, say):
    """`function(step, steps, warmup, clock, synchronize)` gives the time of each step after the warm-up.

    Tried on a device that only exists here, whose `step` returns before its work is done.
    """
    for steps, warmup in ((7, 2), (5, 0)):
        device, wanted = Device(), [ORDERS + work for work in WORK[warmup:steps]]
        times, problem = attempt(function, device.step, steps, warmup, device.clock, device.synchronize)
        case = say("case", steps=steps, warmup=warmup)
        yield case, problem
        listed = isinstance(times, (list, tuple)) and all(isinstance(time, (int, float)) for time in times)
        yield case, not listed and say("no list", times=times)
        times = list(times)
        yield case, device.steps != steps and say("calls", calls=device.steps)
        yield case, len(times) > len(wanted) and say("many", n=len(times))
        yield case, len(times) < len(wanted) and say("few", n=len(times))
        if times != wanted:
            yield case, times == [ORDERS] * len(wanted) and say("queued", orders=ORDERS)
            yield case, times[1:] == wanted[1:] and say("first", times=times, wanted=wanted)
            yield case, times == [time - ORDERS for time in wanted] and say("short", orders=ORDERS)
            yield case, say("long" if sum(times) > sum(wanted) else "otherwise", times=times, wanted=wanted)


def _after(parts, part, factor):
    return sum(parts.values()) - parts[part] + parts[part] / factor


def _whole(parts):
    return sum(parts.values())


sped_up = formula(
    "sped_up",
    "`function(parts, part, factor)`: the speed-up of a step whose `part` gets `factor` times as fast.",
    (  # ms of the parts of a step, a part, how many times as fast it becomes
        ({"input": 30, "forward": 20, "backward": 50}, "backward", 4),
        ({"input": 10, "computing": 30}, "input", inf),
        ({"forward": 1, "backward": 2, "optimizer": 1}, "optimizer", 4),
        ({"step": 8}, "step", 3),
    ),
    lambda parts, part, factor: _whole(parts) / _after(parts, part, factor),
    number,
    turned=lambda parts, part, factor: _after(parts, part, factor) / _whole(parts),
    time=_after,
    part=lambda parts, part, factor: factor,
    vanished=lambda parts, part, factor: len(parts) > 1 and _whole(parts) / _after(parts, part, inf),
    speeds=lambda parts, part, factor: 1 + parts[part] / _whole(parts) * (factor - 1),
)

"""Checks of 01_baseline: a typical step, the clock of a device with a queue, and what a faster part gains."""

from math import inf
from statistics import mean, median

from .verdict import attempt, exercise, number

# In the order of measuring: slow first steps, and one that was disturbed.
ODD = [0.9, 0.4, 0.12, 0.1, 0.8, 0.11, 0.13]
EVEN = [0.9, 0.8, 0.12, 0.1, 0.7, 0.16]
WORK = [90, 40, 10, 12, 11, 10, 14]  # ms that a device needs for each step
ORDERS = 1  # ms that Python needs to queue a step
PARTS = (  # ms of the parts of a step, a part, how many times as fast it becomes
    ({"input": 30, "forward": 20, "backward": 50}, "backward", 4),
    ({"input": 10, "computing": 30}, "input", inf),
    ({"forward": 1, "backward": 2, "optimizer": 1}, "optimizer", 4),
    ({"step": 8}, "step", 3),
)


@exercise("One disturbed step cannot move it, and the first steps have no say in it.")
def median_step(function):
    """`function(times, warmup)` gives the median of `times` (a list, seconds) without its first `warmup`."""
    for times, warmup in ((ODD, 2), (EVEN, 2), (ODD, 0), ([0.3, 0.2], 1)):
        given = list(times)
        value, problem = number(function, given, warmup)
        yield f"For {times} with {warmup} steps of warm-up", problem
        if given != times:
            yield "It changed the list that it was given, and whoever reads it next is misled."
        kept = times[warmup:]
        if not _same(value, median(kept)):
            yield _hint_median(value, times, kept, warmup)


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


@exercise("Nothing is left in the queue when the clock is read, at either end.")
def timed_steps(function):
    """`function(step, steps, warmup, clock, synchronize)` gives the time of each step after the warm-up.

    Tried on a device that only exists here, whose `step` returns before its work is done.
    """
    for steps, warmup in ((7, 2), (5, 0)):
        device = Device()
        times, problem = attempt(function, device.step, steps, warmup, device.clock, device.synchronize)
        if problem is None:
            problem = _hint_times(times, [ORDERS + work for work in WORK[warmup:steps]], device, steps, warmup)
        yield f"{steps} steps with {warmup} of warm-up", problem


@exercise("The other parts take as long as before: that is Amdahl's law.")
def sped_up(function):
    """`function(parts, part, factor)`: how many times as fast a step gets if `part` gets `factor` times as fast."""
    for parts, part, factor in PARTS:
        value, problem = number(function, dict(parts), part, factor)
        case = f"{parts} with the {part} {factor:g} times as fast"
        yield case, problem
        whole, others = sum(parts.values()), sum(parts.values()) - parts[part]
        if not _same(value, whole / (others + parts[part] / factor)):
            yield case, _hint_law(value, parts[part], whole, factor)


def _same(value, other):
    return abs(value - other) <= 1e-6 * abs(other) + 1e-9


def _hint_median(value, times, kept, warmup):
    case = f"For {times} with {warmup} steps of warm-up it gives {value:.4g}."
    ranked, middle = sorted(kept), len(kept) // 2
    even = len(kept) % 2 == 0
    if _same(value, mean(times)):
        return f"{case} That is the mean of all steps: the first are in it, and one slow step moves it."
    if _same(value, mean(kept)):
        return f"{case} The warm-up is left out, but this is a mean: one disturbed step moves it."
    if _same(value, median(times)):
        return f"{case} That is the median of all steps: the first {warmup} must not count."
    if even and any(_same(value, ranked[at]) for at in (middle - 1, middle)):
        return f"{case} An even number of steps has two in the middle; the median is halfway between."
    if _same(value, kept[middle]) or (even and _same(value, (kept[middle - 1] + kept[middle]) / 2)):
        return f"{case} It stands in the middle of the list, which is in order of time. Sort by size first."
    return f"{case} Leave out the first {warmup}, sort the rest, and take the one in the middle."


def _hint_times(times, wanted, device, steps, warmup):
    if not isinstance(times, (list, tuple)) or not all(isinstance(time, (int, float)) for time in times):
        return f"your function returned {times!r}, not a list of times"
    times = list(times)
    if device.steps != steps:
        return f"step() was called {device.steps} times. The steps of the warm-up are done as well, only not counted"
    if len(times) != len(wanted):
        left = "Steps of the warm-up are left out" if len(times) > len(wanted) else "Only the warm-up is left out"
        return f"you return {len(times)} times. {left}"
    if times == wanted:
        return None
    if times == [ORDERS] * len(wanted):
        return f"you measure {ORDERS} ms a step. That is the time to queue it; when is the work done?"
    if times[1:] == wanted[1:]:
        return f"your first time is {times[0]:g} ms, and that step takes {wanted[0]}. What was queued before it?"
    if all(time == work - ORDERS for time, work in zip(times, wanted, strict=True)):
        return f"your times are {ORDERS} ms too short: queueing the step belongs to it"
    if sum(times) > sum(wanted):
        return f"your times are {times} ms, those of the steps {wanted}. Does a time hold the work of other steps?"
    return f"your times are {times} ms, those of the steps {wanted}. Wait for the device before each look at the clock"


def _hint_law(value, part, whole, factor):
    share, after = part / whole, whole - part + part / factor
    case = f"you say {value:.4g}"
    if _same(value, after / whole):
        return f"{case}. That is the new step in old steps: turn it over"
    if _same(value, after):
        return f"{case}. That is the time of the new step. How many times as fast is it?"
    if _same(value, factor):
        return f"{case}. That is the part alone, and the other parts take as long as before"
    if factor < inf and share < 1 and _same(value, 1 / (1 - share)):
        return f"{case}. That is so if the part vanishes. How long does it take now?"
    if _same(value, 1 + share * (factor - 1)):
        return f"{case}. You add speeds; add times. How long are the other parts, and how long is this one now?"
    return f"{case}. The step took {whole:g}; what do its parts take now, all together?"

"""Where a training step spends its time, by kind of work, and what a compiler could gain from that.

The times are those of torch.profiler, the kinds those of `op_kinds`. What an operator calls counts as
part of it, so every moment is counted once.
"""

import copy
import math
import os
from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter

import torch
from torch.autograd import DeviceType
from torch.profiler import supported_activities

from .. import measure
from ..device import synchronize
from . import kinds as op_kinds
from .kinds import BOOKKEEPING, KINDS, NORMALISATION, OTHER, POINTWISE
from .work import Work


@dataclass(frozen=True)
class Profile:
    """Where a training step (forward and backward) spends its time.

    Attributes:
        seconds: a step, by kind of work (op_kinds.KINDS); their sum is the step, but for the noise of
            measuring. "bookkeeping" is when no operator computes: Python, autograd, views, memory.
        step_s: median time of a step (s) without the profiler.
        launches: operators a step that compute something; those called by others are not counted.
        others: {name: seconds a step} of the operators in "other", the longest first.
        work: {kind: a step's floating-point operations, or bytes read and written}; see `rates`.
    """

    seconds: dict
    step_s: float
    launches: int
    others: dict = field(default_factory=dict)
    work: dict = field(default_factory=dict)

    @property
    def share(self) -> dict:
        """The share of the step of each kind; they add up to 1."""
        total = sum(self.seconds.values())
        return {kind: spent / total for kind, spent in self.seconds.items()}

    @property
    def pointwise_bound(self) -> float:
        """The speed-up of a step if its pointwise work and its normalisations took no time at all.

        A compiler fuses such operators, so that fewer tensors are read and written. Amdahl's law (Amdahl,
        "Validity of the single processor approach", 1967) bounds what that gains: 1 / (1 - their share).
        That they are worth fusing, being limited by memory and not by arithmetic, is the roofline model
        (Williams, Waterman and Patterson, 2009, doi:10.1145/1498765.1498785).

        It is too high in that fused work takes time too: its tensors are still read and written once.
        It is too low where a compiler gains elsewhere: it ignores a better memory layout and better
        convolutions or products, and less time for launching operators ("bookkeeping"). So it predicts
        what fusion can do, and no measurement is bound to it.
        """
        kept = 1 - self.share.get(POINTWISE, 0) - self.share.get(NORMALISATION, 0)
        return 1 / kept if kept > 1e-9 else math.inf  # less is rounding

    def rates(self) -> dict:
        """What was achieved: FLOP/s by products and convolutions, bytes/s by pointwise work and normalisation.

        Bytes are the least there can be: every tensor that goes into or comes out of an operator, once.
        """
        return {kind: done / self.seconds[kind] for kind, done in self.work.items() if self.seconds.get(kind)}


def profile(model, inputs, targets, loss=torch.nn.functional.cross_entropy, steps=7, warm_up=3) -> Profile:
    """Where the time of a training step goes: forward, `loss(outputs, targets)` and backward.

    A copy of `model` is trained on, without an optimizer, on the device of `inputs`; the model itself, its
    gradients and the state of the random numbers stay as they are. Each time is the median over the steps.

    Args:
        model: not compiled; what a compiled model calls are no longer PyTorch's operators.

    Raises:
        ValueError: fewer steps than a median needs, or the profiler cannot time this device.
    """
    if steps < measure.AT_LEAST:
        raise ValueError(f"{steps} step(s) are too few for a median one can trust: at least {measure.AT_LEAST}")
    device = inputs.device
    with torch.random.fork_rng([] if device.type == "cpu" else [device]):
        trained = copy.deepcopy(model)
        inputs = inputs.detach().requires_grad_(inputs.requires_grad)

        def step():
            trained.zero_grad(set_to_none=True)
            inputs.grad = None
            synchronize(device)
            began = perf_counter()
            loss(trained(inputs), targets).backward()
            synchronize(device)
            return perf_counter() - began

        for _ in range(warm_up):
            step()
        with Work(device.type) as work:
            step()
        plain = [step() for _ in range(steps)]
        profiled = [_profiled(step, device.type) for _ in range(steps)]
    return _profile(plain, profiled, work.done)


def _profiled(step, device):
    """The time of a step, and (name, kind, seconds) of each operator that computes and that no other one called.

    One step a profile: over several the profiler keeps memory from being used again, which slows them down.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # where it finds no GPU it would say so in every cell
    with torch.profiler.profile(activities=supported_activities(), record_shapes=True) as profiler:
        took = step()
    calls = _outermost([event for event in profiler.events() if event.device_type == DeviceType.CPU], device)
    timed = "cpu_time_total" if device == "cpu" else "device_time_total"
    return took, [(event.name, kind, 1e-6 * getattr(event, timed)) for event, kind in calls]


def _profile(plain, profiled, work):
    """The Profile from the times of steps without the profiler, and from what it says of steps."""
    spent, others = [], Counter()
    for took, calls in profiled:
        by_kind = Counter()
        for name, kind, seconds in calls:
            by_kind[kind] += seconds
            others[name.removeprefix(op_kinds.OWN)] += seconds / len(profiled) if kind == OTHER else 0
        if not by_kind.total():
            raise ValueError("the profiler of this PyTorch gives no times of operators on this device")
        spent.append(by_kind | Counter({BOOKKEEPING: took - by_kind.total()}))
    seconds = {kind: median(each[kind] for each in spent) for kind in KINDS}
    # The profiler itself takes time between the operators, so the rest is at most that of a plain step.
    plain_rest = median(plain) - sum(seconds.values()) + seconds[BOOKKEEPING]
    seconds[BOOKKEEPING] = max(0.0, min(seconds[BOOKKEEPING], plain_rest))
    launches = round(median(len(calls) for _, calls in profiled))
    return Profile(seconds, median(plain), launches, dict((+others).most_common()), dict(work))


def _outermost(events, device):
    """(event, kind) of the operators that compute and that no other one called."""
    kinds = {
        id(event): op_kinds.of_call(event.name, event.concrete_inputs, event.input_shapes, device)
        for event in events
    }  # fmt: skip
    for event in events:
        above = event.cpu_parent
        while above and not kinds[id(above)]:
            above = above.cpu_parent
        if kinds[id(event)] and not above:
            yield event, kinds[id(event)]

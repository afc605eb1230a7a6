"""`optimize(model)` finds the fastest right way to train a model, in its first training steps."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from ..launcher.language import marked
from .plan import Plan, default_plans
from .tuner import Tuner


@dataclass(frozen=True)
class Settings:
    """The settings of a tuner; see `optimize`."""

    rounds: int
    budget_s: float
    min_gain: float
    recompiles: int
    cache: bool
    log: Callable | None

    def __post_init__(self):
        for name, least, kind in (
            ("rounds", 1, int),
            ("budget_s", 0, float),
            ("min_gain", 1, float),
            ("recompiles", 0, int),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else int):
                number = marked("a number") if kind is float else marked("a whole number")
                raise TypeError(f"{name!s} is {value!r}; it must be {number}")
            if not least <= value or math.isnan(value):
                raise ValueError(f"{name!s} is {value}; it must be {least} or more")
        if self.log is not None and not callable(self.log):
            raise TypeError(f"log is {self.log!r}; give a function that takes a line of text, or None")


def optimize(
    model, plans=None, *, bf16=False, rounds=5, budget_s=300.0, min_gain=1.02, recompiles=0, cache=True, log=print
):
    """Let `model` find out, in its first training steps, which plan trains it fastest.

    The training loop stays as it is. At the first step each plan (backend × memory layout × precision)
    is compiled and checked on the live batch: outputs, buffers and gradients must be as near to fp64 as
    eager's, within a factor of three. Then the plans that are right take real steps in turn, timed to
    the end of backward, and the fastest computes all further steps. Eager is always among them, so the
    choice is not slower than what was there. `print(model.tuner)` says what was tried and why.

    Under torch.distributed all ranks must call the model in step; they choose the same plan, by the
    slowest rank's times. Evaluation (no gradients, or eval mode) runs in eager.

    Args:
        model: an nn.Module on its device, or one wrapped in DistributedDataParallel.
        plans: Plans or names of torch.compile backends to try beside eager (None: inductor, and both
            in channels last where the model has 2-d convolutions).
        bf16: whether the default plans may also compute in bfloat16, which changes numbers.
        rounds: timed steps of each plan in the first stage; those that are close then take twice as many.
        budget_s: seconds of compiling and checking after which no further plan is tried.
        min_gain: how many times as fast as eager a plan must be to be chosen.
        recompiles: other shapes of a batch that may be compiled for later; further ones run without.
        cache: whether to keep the decision on disk, by model, shapes, types, torch version and device.
        log: gets a line of text now and then, from rank 0 (None: silence).

    Returns:
        `model`, whose forward is now a Tuner, also `model.tuner`; the keys of its state_dict are unchanged.

    Raises:
        TypeError, ValueError: bad arguments.

    The idea is that of AGSpeed (help.aliyun.com/document_detail/468651.html): capture the graph, try
    backends in the first steps. What is compiled is torch.compile's (Ansel et al., ASPLOS 2024,
    doi:10.1145/3620665.3640366).
    """
    inner = _inner(model)
    forward = inner.forward.forward if isinstance(inner.forward, Tuner) else inner.forward
    if plans is None:
        plans = default_plans(inner, bf16)
    elif bf16:
        raise ValueError("bf16=True is for the default plans; give plans of your own as Plan(..., bf16=True)")
    settings = Settings(rounds, budget_s, min_gain, recompiles, cache, log)
    inner.tuner = inner.forward = Tuner(inner, forward, _checked(plans), settings)
    inner._replicate_for_data_parallel = _Replicate(inner)
    return model


class _Replicate:
    """DataParallel copies a model at every step; its copies compute in eager, with their own weights."""

    def __init__(self, model):
        self.model = model

    def __call__(self):
        replica = type(self.model)._replicate_for_data_parallel(self.model)
        for name in ("forward", "tuner", "_replicate_for_data_parallel"):
            replica.__dict__.pop(name, None)
        return replica


def _inner(model):
    if not isinstance(model, nn.Module):
        raise TypeError(f"optimize needs an nn.Module, got {type(model).__name__}")
    if isinstance(model, nn.DataParallel):
        raise TypeError("optimize cannot work in DataParallel, which copies the model at every step; use DDP")
    if hasattr(model, "_orig_mod"):
        raise TypeError("this model was compiled by torch.compile already; give optimize the model itself")
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def _checked(plans):
    if isinstance(plans, (str, Plan)):
        plans = [plans]
    for plan in plans:
        if not (isinstance(plan, (Plan, str)) or callable(plan)):
            raise TypeError(f"{plan!r} is not a Plan; write Plan(backend, channels_last, bf16), or a backend's name")
    return [plan if isinstance(plan, Plan) else Plan(plan) for plan in plans]

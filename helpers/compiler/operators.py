"""Where a training step spends its time, by kind of operator, and what a compiler could gain from that.

The times are those of torch.profiler. What an operator calls counts as part of it, so every moment is counted once.
"""

import copy
import math
import os
import re
from dataclasses import dataclass
from functools import cache
from statistics import median
from time import perf_counter

import torch
from torch import Tag
from torch.autograd import DeviceType
from torch.profiler import supported_activities

from .. import measure
from ..device import synchronize

CONVOLUTION, MATMUL, NORMALISATION, POINTWISE = "convolution", "matmul", "normalisation", "pointwise"
REDUCTION, OTHER, BOOKKEEPING = "pooling/softmax/loss", "other", "bookkeeping"
FUSED = "fused loops"  # what inductor has written
KINDS = (CONVOLUTION, MATMUL, NORMALISATION, POINTWISE, REDUCTION, OTHER, FUSED, BOOKKEEPING)
WRITTEN = re.compile(r"(graph_\d+_)?(cpp|triton)_\w*fused")  # so inductor names its loops
NAMES = {  # of PyTorch's operators; its own tags tell which others are pointwise
    CONVOLUTION: re.compile(r"conv(olution|_|\dd)"),
    NORMALISATION: re.compile(r"(batch|layer|group|instance|rms)_norm"),
    REDUCTION: re.compile(r"pool\dd|softmax|_loss|^(nan)?sum$|^mean$|^a?(max|min)$|^(var|std)(_mean)?$|^(\w+_)?norm$"),
    MATMUL: re.compile(r"^_?(add|badd|b)?b?mm$|^(add)?mv$|^v?dot$|^(mkldnn_)?linear|^matmul$|attention"),
    POINTWISE: re.compile(
        r"^(copy|fill|zero|masked_fill|bernoulli)_|^(clone|_to_copy|native_dropout)|^(leaky_relu|hardswish)"
    ),
}


@cache
def kind_of(name):
    """The kind of the operator `name`, such as "aten::add": one of KINDS, or None if it computes nothing itself.

    It is None for an operator that only calls others, views a tensor or reserves memory, and for a name that is no
    operator, such as a node of autograd. The reader's own operator is OTHER.
    """
    if WRITTEN.match(name):
        return FUSED
    namespace, _, base = name.partition("::")
    forms = _forms(namespace, base)
    if not forms:
        return None
    if namespace == "aten":
        if found := next((kind for kind, pattern in NAMES.items() if pattern.search(base)), None):
            return found
        # What PyTorch says of add holds for add_, and the gradient of a pointwise function is pointwise.
        bases = (base, base.removesuffix("_"), base.removesuffix("_backward"))
        if any(Tag.pointwise in form.tags for each in bases for form in _forms(namespace, each)):
            return POINTWISE
        if re.match("empty|resize_|set_", base):
            return None
    return OTHER if any(map(_computes, forms)) else None


def _forms(namespace, base):
    """The overloads of an operator."""
    try:
        packet = getattr(getattr(torch.ops, namespace), base)
        return [getattr(packet, overload) for overload in packet.overloads()]
    except (AttributeError, RuntimeError):
        return []


def _computes(form):
    """Whether an operator makes a tensor, and not by calling others only."""
    try:
        calls_others = form.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
    except RuntimeError:  # an overload for TorchScript only
        return False
    return not (form.is_view or calls_others) and any("Tensor" in str(each.type) for each in form._schema.returns)


@dataclass(frozen=True)
class Profile:
    """Where a training step (forward and backward) spends its time.

    Attributes:
        seconds: a step, by kind of work (KINDS); "bookkeeping" is when no operator computes: Python, autograd, views.
        step_s: median time of a step (s) without the profiler.
        launches: operators a step that compute something; those called by others are not counted.
    """

    seconds: dict
    step_s: float
    launches: int

    @property
    def share(self) -> dict:
        """The share of the step of each kind; they add up to 1."""
        total = sum(self.seconds.values())
        return {kind: spent / total for kind, spent in self.seconds.items()}

    @property
    def pointwise_bound(self) -> float:
        """The speed-up of a step if its pointwise work and its normalisations took no time (Amdahl's law).

        It is too high in that fused work takes time too, and too low where a compiler gains elsewhere, as by a layout.
        """
        kept = 1 - self.share.get(POINTWISE, 0) - self.share.get(NORMALISATION, 0)
        return 1 / kept if kept > 1e-9 else math.inf  # less is rounding


def profile(model, inputs, targets, loss=torch.nn.functional.cross_entropy, steps=7, warm_up=3) -> Profile:
    """Where the time of a training step goes: forward, `loss(outputs, targets)` and backward.

    A copy of `model`, which is not compiled, is trained on, without an optimizer, on the device of `inputs`; the model
    itself, its gradients and the random numbers stay as they are. Each time is the median over the steps.

    Raises:
        ValueError: fewer steps than a median needs, or the profiler cannot time this device.
    """
    device = inputs.device
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        trained = copy.deepcopy(model)
        inputs = inputs.detach().requires_grad_(inputs.requires_grad)

        def step():
            trained.zero_grad(set_to_none=True)
            inputs.grad = None
            loss(trained(inputs), targets).backward()

        return profile_compiled(step, device, steps, warm_up)


def profile_compiled(step, device="cpu", steps=7, warm_up=3) -> Profile:
    """Where a step of a compiled model goes: the loops that inductor has written, and the operators it calls.

    Args:
        step: sets the gradients to None, then runs forward and backward. Before its model is compiled for a CPU, set
            torch._inductor.config.cpp.enable_kernel_profile, or the profiler does not see the loops.
    """
    device = torch.device(device)
    if steps < measure.AT_LEAST:
        raise ValueError(f"{steps} step(s) are too few for a median one can trust: at least {measure.AT_LEAST}")

    def timed():
        synchronize(device)
        began = perf_counter()
        step()
        synchronize(device)
        return perf_counter() - began

    for _ in range(warm_up):
        timed()
    plain = median(timed() for _ in range(steps))
    # One step a profile: over several the profiler keeps memory from being used again, which slows them down.
    runs = [_calls(timed, device) for _ in range(steps)]
    seconds = {kind: median(sum(s for k, s in calls if k == kind) for _, calls in runs) for kind in KINDS}
    if not any(seconds.values()):
        raise ValueError("the profiler of this PyTorch gives no times of operators on this device")
    rest = median(took - sum(s for _, s in calls) for took, calls in runs)
    # The profiler itself takes time between the operators, so the rest is at most that of a plain step.
    seconds[BOOKKEEPING] = max(0.0, min(rest, plain - sum(seconds.values())))
    return Profile(seconds, plain, round(median(len(calls) for _, calls in runs)))


def _calls(timed, device):
    """Seconds of a step, and (kind, seconds) of each operator in it that computes and that no other one called."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # where it finds no GPU it would say so in every cell
    with torch.profiler.profile(activities=supported_activities()) as profiler:
        took = timed()
    spent, calls = "cpu_time_total" if device.type == "cpu" else "device_time_total", []
    for event in profiler.events():
        if event.device_type == DeviceType.CPU and (kind := kind_of(event.name)):
            above = event.cpu_parent
            while above and not kind_of(above.name):
                above = above.cpu_parent
            if not above:
                calls.append((kind, 1e-6 * getattr(event, spent)))
    return took, calls


def in_ms(profiles) -> str:
    """A table of {name: Profile} in milliseconds a step: what libraries compute, what can be fused or was, the rest."""
    import pandas

    groups = {
        "convolutions, products": (CONVOLUTION, MATMUL),
        "pointwise, normalisation, fused loops": (POINTWISE, NORMALISATION, FUSED),
        "the rest": (REDUCTION, OTHER, BOOKKEEPING),
        "together": KINDS,
    }
    spent = lambda each, kinds: 1000 * sum(each.seconds.get(kind, 0) for kind in kinds)  # noqa: E731
    columns = {name: [spent(each, kinds) for kinds in groups.values()] for name, each in profiles.items()}
    table = pandas.DataFrame(columns, groups).rename_axis("ms a step", axis=1)
    table.loc["without the profiler"] = [1000 * each.step_s for each in profiles.values()]
    return table.to_string(float_format="{:.1f}".format)

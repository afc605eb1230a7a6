"""Where a training step spends its time, by kind of operator, and what a compiler could gain from that.

The times are those of torch.profiler. The kind of an operator comes from its own tags and signature, and what an
operator calls counts as part of it, so every moment is counted once. The work (floating-point operations, bytes)
shows how fast each kind runs.
"""

import copy
import math
import os
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from statistics import median
from time import perf_counter

import torch
from torch import Tag
from torch.autograd import DeviceType
from torch.profiler import supported_activities
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from .. import measure
from ..device import synchronize

# -- kinds --------------------------------------------------------------------------------

POINTWISE, NORMALISATION, MATMUL = "pointwise", "normalisation", "matmul"
CONVOLUTION, DEPTHWISE = "convolution", "depthwise convolution"
REDUCTION, OTHER, BOOKKEEPING = "pooling/softmax/loss", "other", "bookkeeping"
FUSED = "fused loops"  # what inductor has written
KINDS = (CONVOLUTION, DEPTHWISE, MATMUL, NORMALISATION, POINTWISE, REDUCTION, OTHER, FUSED, BOOKKEEPING)
WRITTEN = re.compile(r"(graph_\d+_)?(cpp|triton)_\w*fused")  # so inductor names its loops

# Of operators that no tag describes: whole names, so that an unknown one cannot match by accident.
NAMES = {
    kind: re.compile(pattern)
    for kind, pattern in {
        CONVOLUTION: r"_?convolution(_backward)?(_overrideable)?|(cudnn|miopen|mkldnn|mps)_(depthwise_)?convolution\w*"
        r"|_mps_convolution\w*|_nnpack_spatial_convolution|_conv_depthwise2d|conv_depthwise3d"
        r"|_?(slow|thnn)_conv\w*|conv_tbc(_backward)?",
        MATMUL: r"_?(scaled_|int_|grouped_|sparse_)?((add|badd|ba?)?b?mm|addmv|addr|mv|dot|vdot|matmul)"
        r"|_addmm_activation|(mkldnn_)?linear(_backward)?|mkldnn_linear_backward_(input|weights)"
        r"|_scaled_dot_product_\w+_attention\w*|_(flash|efficient|cudnn)_attention_(forward|backward)",
        NORMALISATION: r"_?(native_|cudnn_|miopen_|fused_)?(batch|layer|group|instance|rms)_norm(_\w+)?",
        POINTWISE: r"copy_|fill_|zero_|clone|_to_copy|bernoulli_?|native_dropout|_fused_dropout|hardswish|glu"
        r"|_prelu_kernel|log_sigmoid_forward|log_sigmoid|masked_fill_|leaky_relu",
        REDUCTION: r"_?(mkldnn_)?(adaptive_|fractional_)?(max|avg)_(un)?pool[123]d\w*"
        r"|_?(log_|safe_|masked_)?softmax(_\w+)?"
        r"|\w+_loss(2d)?(_forward)?|binary_cross_entropy|(nan)?sum|mean|amax|amin|aminmax|argmax|argmin|prod|var|std"
        r"|(var|std)_mean|any|all|count_nonzero|norm|linalg_vector_norm|logsumexp",
    }.items()
}
AMBIGUOUS = ("aten::max", "aten::min")  # of one tensor a reduction, of two pointwise
MEMORY = re.compile("empty|empty_strided|resize_|set_")  # given out, nothing computed
OWN = "GeneratedBackwardFor_"  # so the profiler calls an operator made by torch.library, and its gradient
GROUPED = {  # what every convolution of a model ends in: the names of its arguments
    f"aten::{name}": [argument.name for argument in getattr(torch.ops.aten, name).default._schema.arguments]
    for name in ("convolution", "convolution_backward")
}


@cache
def kind_of(name, device="cpu"):
    """The kind of the operator `name`, such as "aten::add": one of KINDS, or None if it computes nothing itself.

    It is None for an operator that only calls others, looks at a tensor in another way or reserves memory,
    and for a name that is no operator: a node of autograd, a label that the reader gave to a block. What
    PyTorch does not describe, such as the reader's own operator, is OTHER.

    Args:
        device: the type of a torch.device; without a kernel of its own there, an operator of PyTorch is
            made of others, and they are what is counted.
    """
    if name.startswith(OWN):
        return OTHER
    if WRITTEN.match(name):
        return FUSED
    namespace, _, base = name.partition("::")
    forms = _forms(namespace, base)
    if not forms:
        return None
    # What PyTorch says of add holds for add_, and the gradient of a pointwise function is pointwise.
    bases = (base, base.removesuffix("_"), base.removesuffix("_backward"))
    tags = {tag for each in bases for form in _forms(namespace, each) for tag in form.tags}
    if Tag.pointwise in tags and name not in AMBIGUOUS:
        return POINTWISE
    if namespace == "aten":
        found = next((kind for kind, names in NAMES.items() if any(map(names.fullmatch, bases))), None)
        own = any(_has_kernel(form, device) for form in forms)
        if found in (CONVOLUTION, POINTWISE) or (own and found):
            return found
        if not own or MEMORY.fullmatch(base) or not any(map(_computes, forms)):
            return None
    return OTHER


def kind_of_call(name, arguments, shapes, device="cpu"):
    """`kind` of one call, which tells a depthwise convolution from others.

    Args:
        arguments: of the call, in order; where they are tensors, anything.
        shapes: of its arguments, in order; where they are no tensors, anything.
    """
    found = kind_of(name, device)
    if found == CONVOLUTION and name in GROUPED:
        names = GROUPED[name]
        groups, channels = arguments[names.index("groups")], shapes[names.index("input")][1]
        return DEPTHWISE if groups == channels > 1 else CONVOLUTION  # each channel by itself
    return found


@cache
def _forms(namespace, base):
    """The overloads of an operator that take or return tensors, less those that write to `out`."""
    try:
        packet = getattr(getattr(torch.ops, namespace), base)
        forms = [getattr(packet, overload) for overload in packet.overloads()]
    except (AttributeError, RuntimeError):
        return ()
    return tuple(
        form
        for form in forms
        if any("Tensor" in str(each.type) for each in (*form._schema.arguments, *form._schema.returns))
        and not any(argument.is_out for argument in form._schema.arguments)
    )


def _has_kernel(form, device):
    if form.name() not in _dispatched():  # it is there for TorchScript only
        return False
    return form.has_kernel_for_dispatch_key(torch._C._dispatch_key_for_device(device))


@cache
def _dispatched():
    return frozenset(torch._C._dispatch_get_all_op_names())


def _computes(form):
    return not form.is_view and any("Tensor" in str(each.type) for each in form._schema.returns)


# -- work --------------------------------------------------------------------------------


ONLY_WRITTEN = (torch.ops.aten.copy_, torch.ops.aten.fill_, torch.ops.aten.zero_)  # they do not read what is there


class Work(TorchDispatchMode):
    """Counts in `done` what the operators of a step have to do: floating-point operations, or bytes."""

    def __init__(self, device):
        super().__init__()
        self.done, self._device = Counter(), device

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        shapes = [each.shape if torch.is_tensor(each) else None for each in args]
        kind = kind_of_call(func.name().partition(".")[0], args, shapes, self._device)
        if kind in (POINTWISE, NORMALISATION):
            read = args[1:] if func._overloadpacket in ONLY_WRITTEN else args
            self.done[kind] += sum(map(_bytes, tree_leaves((read, kwargs, result))))
        elif kind in (CONVOLUTION, DEPTHWISE):
            self.done[kind] += _convolution_flops(func, args, result)
        elif kind == MATMUL and func._overloadpacket in flop_registry:
            self.done[kind] += flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=result)
        return result


def _bytes(each):
    """What an argument or result holds in memory; less than its shape says where it is expanded."""
    return min(each.nbytes, each.untyped_storage().nbytes()) if torch.is_tensor(each) else 0


def _convolution_flops(func, args, result):
    """Two for each weight, sample and place. (PyTorch's own formula is too high for groups, going backward.)"""
    backward = func._overloadpacket is torch.ops.aten.convolution_backward
    weight, transposed = (args[2], args[7]) if backward else (args[1], args[6])
    inputs, outputs = (args[1], args[0]) if backward else (args[0], result)
    places = inputs if transposed else outputs  # each is multiplied with the whole of the weights
    products = sum(args[-1][:2]) if backward else 1  # gradients of the input and of the weights
    return 2 * products * places.shape[0] * math.prod(places.shape[2:]) * weight.numel()


# -- the profile of a step ---------------------------------------------------------------


@dataclass(frozen=True)
class Profile:
    """Where a training step (forward and backward) spends its time.

    Attributes:
        seconds: a step, by kind of work (KINDS); their sum is the step, but for the noise of
            measuring. "bookkeeping" is when no operator computes: Python, autograd, views, memory.
        step_s: median time of a step (s) without the profiler.
        launches: operators a step that compute something; those called by others are not counted.
        work: {kind: a step's floating-point operations, or bytes read and written}; see `rates`.
    """

    seconds: dict
    step_s: float
    launches: int
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
        model: not compiled; for a compiled one see `profile_compiled`.

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


def in_ms(profiles) -> str:
    """A table of {name: Profile} in milliseconds a step: what libraries compute, what can be fused or was, the rest."""
    groups = {
        "convolutions, products": (CONVOLUTION, DEPTHWISE, MATMUL),
        "pointwise, normalisation, fused loops": (POINTWISE, NORMALISATION, FUSED),
        "the rest": (REDUCTION, OTHER, BOOKKEEPING),
        "together": KINDS,
    }
    lines = [f"{'ms a step':<38}" + "".join(f"{name:>10}" for name in profiles)]
    for group, kinds in groups.items():
        spent = (1000 * sum(each.seconds.get(kind, 0) for kind in kinds) for each in profiles.values())
        lines.append(f"{group:<38}" + "".join(f"{ms:10.1f}" for ms in spent))
    return "\n".join(lines)


def profile_compiled(step, device="cpu", steps=7, warm_up=3) -> Profile:
    """Where a step of a compiled model goes: the loops that inductor has written, and the operators it calls.

    Args:
        step: sets the gradients to None, then runs forward and backward. Before its model is compiled for a CPU, set
            torch._inductor.config.cpp.enable_kernel_profile, or the profiler does not see the loops.
        device: the type of a torch.device.
    """

    def timed():
        began = perf_counter()
        step()
        synchronize(torch.device(device))
        return perf_counter() - began

    for _ in range(warm_up):
        timed()
    plain = [timed() for _ in range(steps)]
    return _profile(plain, [_profiled(timed, device) for _ in range(steps)], {})


def _profiled(step, device):
    """The time of a step, and (kind, seconds) of each operator that computes and that no other one called.

    One step a profile: over several the profiler keeps memory from being used again, which slows them down.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # where it finds no GPU it would say so in every cell
    with torch.profiler.profile(activities=supported_activities(), record_shapes=True) as profiler:
        took = step()
    calls = _outermost([event for event in profiler.events() if event.device_type == DeviceType.CPU], device)
    timed = "cpu_time_total" if device == "cpu" else "device_time_total"
    return took, [(kind, 1e-6 * getattr(event, timed)) for event, kind in calls]


def _profile(plain, profiled, work):
    """The Profile from the times of steps without the profiler, and from what it says of steps."""
    spent = []
    for took, calls in profiled:
        by_kind = Counter()
        for kind, seconds in calls:
            by_kind[kind] += seconds
        if not by_kind.total():
            raise ValueError("the profiler of this PyTorch gives no times of operators on this device")
        spent.append(by_kind | Counter({BOOKKEEPING: took - by_kind.total()}))
    seconds = {kind: median(each[kind] for each in spent) for kind in KINDS}
    # The profiler itself takes time between the operators, so the rest is at most that of a plain step.
    plain_rest = median(plain) - sum(seconds.values()) + seconds[BOOKKEEPING]
    seconds[BOOKKEEPING] = max(0.0, min(seconds[BOOKKEEPING], plain_rest))
    launches = round(median(len(calls) for _, calls in profiled))
    return Profile(seconds, median(plain), launches, dict(work))


def _outermost(events, device):
    """(event, kind) of the operators that compute and that no other one called."""
    kinds = {id(event): kind_of_call(event.name, event.concrete_inputs, event.input_shapes, device) for event in events}
    for event in events:
        above = event.cpu_parent
        while above and not kinds[id(above)]:
            above = above.cpu_parent
        if kinds[id(event)] and not above:
            yield event, kinds[id(event)]

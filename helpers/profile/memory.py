"""`memory(train)`: what fills the memory in a training step, and when most of it is in use.

Every block comes from torch.profiler, which hears of each allocation of PyTorch's CPU allocator or of CUDA's caching
allocator: address, size, time. What a block holds is found by its address: the parameters' and gradients' from the
optimizer, its state, and what autograd saves for backward from torch.autograd.graph.saved_tensors_hooks, with the
module that was running. What libraries such as oneDNN
take for themselves, and what NumPy holds, is not in it. Of a sharded model (DTensors, FSDP) a rank's own shards are its
parameters, gradients and state; a weight that was put together for a module's forward or backward is a gathered one.
"""

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from torch.nn.modules import module as hooks

from .. import device
from ..language import N_
from ..launcher.launch import launch
from .kinds import ACTIVATIONS, CASTS, GATHERED, GRADIENTS, MEMORY, OTHER, PARAMETERS, STATE
from .record import Recorder, check_recorded, prepared
from .spans import spans_of

OUTSIDE = N_("outside the model")  # such as the loss
ORDER = PARAMETERS, STATE, GRADIENTS, CASTS, GATHERED, ACTIVATIONS  # which mark of a block counts


def memory(what, nprocs=1, *args, warm_up=2, timeout=None, threads=None, env=None, **kwargs):
    """Train `warm_up + 1` steps on every rank and return the `Memory` of the last one, on rank 0.

    Arguments and errors are those of `timeline`. The model runs eagerly: of a compiled one the kinds are not known.

    Returns:
        A Memory: `curve` has bytes of each kind over the seconds of the step, `peak_bytes` the most at once; `figure()`
        draws it. Blocks come from torch.profiler, and what libraries take for themselves is not among them.
    """
    steps = warm_up + 1
    nprocs, threads, env, what, args = prepared(what, nprocs, args, kwargs, steps, threads, env)
    answers = launch(count_memory, nprocs, what, args, kwargs, steps, timeout=timeout, threads=threads, env=env)
    check_recorded([(recording, {name for name, *_ends in phases}) for _, recording, phases, _ in answers], steps, 0)
    _answer, _recording, phases, in_use = answers[0]
    return Memory(*in_use, phases, [answer for answer, *_rest in answers], device.machine().describe())


@dataclass
class Memory:
    """One step of rank 0.

    Attributes:
        curve: (s from the step's start, {kind: bytes}) after each allocation or release.
        modules: {module: bytes of activations} when there are most, in the order of the model.
        phases: (name, begin, end) of forward, backward and optimizer (s).
        answers: what the function returned on each rank.
    """

    curve: list
    modules: dict
    phases: list = field(default_factory=list)
    answers: list = field(default_factory=list, repr=False)
    conditions: str = ""

    @property
    def peak(self) -> tuple:
        """(s, {kind: bytes}) when most is in use."""
        return max(self.curve, key=lambda point: sum(point[1].values()))

    @property
    def peak_bytes(self) -> int:
        """The most bytes in use at once."""
        return sum(self.peak[1].values())

    @property
    def peak_phase(self) -> str:
        """In which phase of the step that is."""
        here = (name for name, begin, end in self.phases if begin <= self.peak[0] <= end)
        return next(here, N_("between the phases"))

    def most(self) -> dict:
        """{kind: the most bytes of it at any time of the step}."""
        return {kind: max(point[kind] for _when, point in self.curve) for kind in MEMORY}

    def rows(self) -> list:
        """A dict for each kind: its bytes at the peak, and the most that there is of it."""
        at_peak = self.peak[1]
        return [
            {"kind": kind, "bytes at the peak": at_peak[kind], "most bytes": most}
            for kind, most in self.most().items()
            if most
        ]

    def figure(self, title=None):
        """(figure, alt): the memory over the step, by kind, with its peak; for `plots.show(*…)`."""
        from .figure import draw_memory

        return draw_memory(self, title)


# -- on a rank ----------------------------------------------------------------------------


def count_memory(what, args, kwargs, steps):
    """On a rank: (what the function returned, Recording, phases, the curve and the modules of a Memory)."""
    recorder = MemoryRecorder(steps)
    with recorder.watching():
        answer, recording, events = recorder.record(what, args, kwargs)
    if not events:
        return answer, recording, [], None
    begin = recording.ends[-2]
    found = [span for span in spans_of(events, recording) if span.step == steps - 1]
    phases = [(span.kind, 1e-9 * (span.start - begin), 1e-9 * (span.end - begin)) for span in found]
    return answer, recording, phases, in_use(events, recorder.marks, recording)


class MemoryRecorder(Recorder):
    """Also notes, at each moment, which address holds what."""

    options = {"profile_memory": True}

    def __init__(self, steps):
        super().__init__(0, steps)
        self.marks, self.running_modules, self.names = [], [], {}
        self.own, self.gathered = set(), set()  # parameters between steps; storages of those put together in one

    def mark(self, tensor, kind, name=""):
        tensor = getattr(tensor, "_local_tensor", tensor)  # a DTensor has no memory but that of its shard
        if torch.is_tensor(tensor) and tensor.layout == torch.strided and tensor.untyped_storage().nbytes():
            self.marks.append((time.time_ns(), tensor.untyped_storage().data_ptr(), kind, name))

    def watching(self):
        """A context manager: while it lasts, modules and autograd are watched."""
        stack = ExitStack()
        stack.callback(hooks.register_module_forward_pre_hook(self.enter).remove)
        stack.callback(hooks.register_module_forward_hook(self.leave, always_call=True).remove)
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self.saved, self.needed))
        return stack

    def enter(self, module, _inputs):
        if not self.running_modules and module not in self.names:  # the whole model
            for name, part in module.named_modules():
                self.names.setdefault(part, name.removeprefix("module.") or type(module).__name__)
            for parameter in module.parameters():
                self.mark(parameter, PARAMETERS)
                self.own.add(id(parameter))
        self.running_modules.append(module)

    def leave(self, module, *_answer):
        if self.running_modules:
            self.running_modules.pop()
        for parameter in module.parameters(recurse=False):
            if id(parameter) not in self.own:
                self.gathered.add(parameter.untyped_storage()._cdata)
                self.mark(parameter, GATHERED)

    def saved(self, tensor):
        if not isinstance(tensor, torch.nn.Parameter):
            module = self.running_modules[-1] if self.running_modules else None
            own = list(module.parameters(recurse=False)) if module else []
            cast = any(tensor.dtype != p.dtype and sorted(tensor.shape) == sorted(p.shape) for p in own)
            self.mark(tensor, CASTS if cast else ACTIVATIONS, self.names.get(module, OUTSIDE))
        return tensor

    def needed(self, tensor):
        if torch.is_tensor(tensor) and tensor.untyped_storage()._cdata in self.gathered:
            self.mark(tensor, GATHERED)  # for backward, at another address than for forward
        return tensor

    def before(self, optimizer, *rest):
        super().before(optimizer, *rest)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.mark(parameter, PARAMETERS)
                self.mark(parameter.grad, GRADIENTS)

    def after(self, optimizer, *rest):
        for state in optimizer.state.values():
            for value in state.values():
                self.mark(value, STATE)
        super().after(optimizer, *rest)


def in_use(events, marks, recording) -> tuple:
    """(curve, modules) of the last step's `Memory`, from the allocator's events and the marks."""
    begin, end = recording.ends[-2:]
    blocks = _blocks(events, 0 if recording.device == "cpu" else 1)  # numbers of torch's DeviceType
    changes = []
    for (_address, size, born, died), (kind, name) in zip(blocks, _kinds(blocks, marks), strict=True):
        if died > begin and born < end:
            changes += [(max(born, begin), size, kind, name), (died, -size, kind, name)]
    now, curve, held, most = dict.fromkeys(MEMORY, 0), {0.0: dict.fromkeys(MEMORY, 0)}, Counter(), Counter()
    for when, size, kind, name in sorted(changes):
        if when > end:
            break
        now[kind] += size
        if kind == ACTIVATIONS:
            held[name] += size
            most = held.copy() if held.total() > most.total() else most
        curve[1e-9 * (when - begin)] = dict(now)
    curve[1e-9 * (end - begin)] = dict(now)
    order = {name: place for place, (*_mark, name) in reversed(list(enumerate(marks)))}
    return list(curve.items()), {name: most[name] for name in sorted(most, key=order.get) if most[name]}


def _blocks(events, device_type):
    """(address, bytes, born, died) of each block, in the order of birth; what is never released dies at infinity.

    The profiler does not hear of what gloo's threads release. Such a block has died when another takes its place.
    """
    blocks, alive, places = [], {}, []
    for event in events:
        if event["name"] != "[memory]" or event["args"]["Device Type"] != device_type:
            continue
        address, size = event["args"]["Addr"], event["args"]["Bytes"]
        if size > 0:
            place = bisect_left(places, address)
            if place and sum(blocks[alive[places[place - 1]]][:2]) > address:
                place -= 1
            while place < len(places) and places[place] < address + size:
                blocks[alive.pop(places.pop(place))][3] = event["ts"]
            places.insert(place, address)
            alive[address] = len(blocks)
            blocks.append([address, size, event["ts"], float("inf")])
        elif address in alive:
            places.remove(address)
            blocks[alive.pop(address)][3] = event["ts"]
    return blocks


def _kinds(blocks, marks):
    """Yields (kind, module) of each block: what was marked at its address while it lived, by the first of ORDER."""
    at = defaultdict(list)
    for when, address, kind, name in marks:
        at[address].append((when, kind, name))
    for address, _size, born, died in blocks:
        mine = [mark for mark in at[address] if born <= mark[0] <= died]
        yield min(mine, key=lambda mark: ORDER.index(mark[1]), default=(0, OTHER, ""))[1:]

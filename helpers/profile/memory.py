"""`memory(train)`: what fills the memory in a training step, and when most of it is in use.

Every block comes from torch.profiler, which hears of each allocation of PyTorch's CPU allocator or of CUDA's caching
allocator: address, size, time. What a block holds is found by its address: the parameters' and gradients' from the
optimizer, its state, and what autograd saves for backward from torch.autograd.graph.saved_tensors_hooks, with the
module that was running. What libraries such as oneDNN take for themselves, and what NumPy holds, is not in it.
Of a sharded model (DTensors, FSDP) a rank's own shards are its parameters, gradients and state; a weight that was put
together for a module's forward or backward is a gathered one.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field

from .. import device
from ..launcher.language import marked
from ..launcher.launch import launch

PARAMETERS, STATE, GRADIENTS, ACTIVATIONS, CASTS, GATHERED, OTHER = (
    marked("parameters"),
    marked("optimizer state"),
    marked("gradients"),
    marked("activations"),
    marked("cast weights"),
    marked("gathered weights"),
    marked("other"),
)
KINDS = (PARAMETERS, STATE, GRADIENTS, CASTS, GATHERED, ACTIVATIONS, OTHER)
OUTSIDE = marked("outside the model")  # such as the loss


def memory(what, nprocs=1, *args, warm_up=2, timeout=None, threads=None, env=None, **kwargs):
    """Train `warm_up + 1` steps on every rank and return the `Memory` of the last one, on rank 0.

    Arguments and errors are those of `timeline`. The model runs eagerly: what a compiled one keeps is not told apart.
    On CUDA the blocks are those of the caching allocator, and `reserved` is what it holds of the device's memory
    (written for it, but tried on CPUs only).
    """
    from .timeline import checked, counted, differentiated, of_what

    made = counted("warm_up", warm_up) + 1
    nprocs, threads, env, what, args = of_what(what, nprocs, args, kwargs, made, threads, env)
    answers = launch(count_memory, nprocs, what, args, kwargs, made, timeout=timeout, threads=threads, env=env)
    checked([recording for _, recording, _ in answers], made, 0)
    differentiated([(recording.rank, {name for name, *_ in each.phases}) for _, recording, each in answers])
    found = answers[0][-1]
    found.peaks, found.answers = [each.peak_bytes for *_, each in answers], [answer for answer, *_ in answers]
    found.conditions = device.machine().describe()
    return found


@dataclass
class Memory:
    """One step of rank 0.

    Attributes:
        curve: (s from the step's start, {kind: bytes}) after each allocation or release.
        modules: {module: bytes of activations} when there are most, in the order of the model.
        phases: (name, begin, end) of forward, backward and optimizer (s).
        reserved: the most bytes that CUDA's caching allocator held; 0 on a CPU.
        peaks: the peak of each rank. answers: what the function returned on each.
    """

    curve: list
    modules: dict
    phases: list = field(default_factory=list)
    reserved: int = 0
    peaks: list = field(default_factory=list)
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
        return next(here, marked("between the phases"))

    def most(self) -> dict:
        """{kind: the most bytes of it at any time of the step}."""
        return {kind: max(point[kind] for _, point in self.curve) for kind in KINDS}

    def rows(self) -> list:
        """A dict for each kind: its bytes at the peak, their share, and the most that there is of it."""
        most, (_, at_peak) = self.most(), self.peak
        whole = self.peak_bytes or 1
        return [
            {"kind": kind, "bytes at the peak": at_peak[kind], "share": at_peak[kind] / whole, "most bytes": most[kind]}
            for kind in KINDS
            if most[kind]
        ]

    def table(self):
        """`rows` as a pandas DataFrame of texts."""
        from .timeline import frame

        return frame(self.rows())

    def figure(self, title=None):
        """(figure, alt): the memory over the step, by kind, with its peak; for `plots.show(*…)`."""
        from .figure import draw_memory

        return draw_memory(self, title)


# -- in a rank ----------------------------------------------------------------------------


def count_memory(what, args, kwargs, steps):
    from . import record
    from .spans import spans

    recorder = _recorder(steps)
    with recorder.watching():
        answer, recording, events = record.record(what, args, kwargs, recorder)
    if not events:
        return answer, recording, None
    phases = [span for span in spans(events, recording) if span.step == steps - 1]
    return answer, recording, _memory(events, recorder.marks, recording, phases)


def _recorder(steps):
    """A Recorder that also notes, at each moment, which address holds what."""
    import time

    import torch
    from torch.nn.modules import module as hooks

    from .record import Recorder

    class Marking(Recorder):
        options = {"profile_memory": True}

        def __init__(self):
            super().__init__(0, steps)
            self.marks, self.running_modules, self.names = [], [], {}
            self.own, self.gathered = set(), set()  # parameters between steps; storages of those put together in one

        def mark(self, tensor, kind, name=""):
            tensor = getattr(tensor, "_local_tensor", tensor)  # a DTensor has no memory but that of its shard
            if torch.is_tensor(tensor) and tensor.layout == torch.strided and tensor.untyped_storage().nbytes():
                self.marks.append((time.monotonic_ns(), tensor.untyped_storage().data_ptr(), kind, name))

        def watching(self):
            stack = ExitStack()
            stack.callback(hooks.register_module_forward_pre_hook(self.enter).remove)
            stack.callback(hooks.register_module_forward_hook(self.leave, always_call=True).remove)
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self.saved, self.needed))
            return stack

        def enter(self, module, _):
            if not self.running_modules and module not in self.names:  # the whole model
                for name, part in module.named_modules():
                    self.names.setdefault(part, name.removeprefix("module.") or type(module).__name__)
                for parameter in module.parameters():
                    self.mark(parameter, PARAMETERS)
                    self.own.add(id(parameter))
            self.running_modules.append(module)

        def leave(self, module, *_):
            if self.running_modules:
                self.running_modules.pop()
            for parameter in module.parameters(recurse=False):
                if id(parameter) not in self.own:
                    self.gathered.add(parameter.untyped_storage()._cdata)
                    self.mark(parameter, GATHERED)

        def needed(self, tensor):
            if torch.is_tensor(tensor) and tensor.untyped_storage()._cdata in self.gathered:
                self.mark(tensor, GATHERED)  # for backward, at another address than for forward
            return tensor

        def saved(self, tensor):
            if not isinstance(tensor, torch.nn.Parameter):
                module = self.running_modules[-1] if self.running_modules else None
                own = [p for p in module.parameters(recurse=False)] if module else []
                cast = any(tensor.dtype != p.dtype and sorted(tensor.shape) == sorted(p.shape) for p in own)
                self.mark(tensor, CASTS if cast else ACTIVATIONS, self.names.get(module, OUTSIDE))
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

    return Marking()


def _memory(events, marks, recording, phases):
    """The Memory of the last step, from the allocator's events and the marks."""
    begin, end = recording.ends[-2], recording.ends[-1]
    blocks = _blocks(events, 0 if recording.device == "cpu" else 1)  # numbers of torch's DeviceType
    kinds = _kinds(blocks, marks)
    changes = [(begin, None, "", 0)]
    for (_, size, born, died), (kind, name) in zip(blocks, kinds, strict=True):
        if died > begin and born < end:
            changes += [(max(born, begin), kind, name, size), (died, kind, name, -size)]
    now, curve, held, most = dict.fromkeys(KINDS, 0), [], Counter(), {}
    for when, kind, name, size in sorted(changes, key=lambda change: (change[0], change[3])):
        if when > end:
            break
        if kind:
            now[kind] += size
        if kind == ACTIVATIONS:
            held[name] += size
            if held.total() > sum(most.values()):
                most = dict(held)
        if curve and curve[-1][0] == 1e-9 * (when - begin):
            curve.pop()
        curve.append((1e-9 * (when - begin), dict(now)))
    curve.append((1e-9 * (end - begin), dict(now)))
    order = {name: place for place, (*_, name) in reversed(list(enumerate(marks)))}
    most = {name: most[name] for name in sorted(most, key=order.get) if most[name]}
    reserved = max((event["args"]["Total Reserved"] for event in events if event["name"] == "[memory]"), default=0)
    spans = [(span.kind, 1e-9 * (span.start - begin), 1e-9 * (span.end - begin)) for span in phases]
    return Memory(curve, most, spans, reserved)


def _blocks(events, device_type):
    """(address, bytes, born, died) of each block, in the order of birth; what is never released dies at infinity.

    The profiler does not hear of what gloo's threads release. Such a block has died when another takes its place.
    """
    blocks, alive, places = [], {}, []
    for event in events:
        about = event.get("args", {})
        if event["name"] != "[memory]" or about["Device Type"] != device_type:
            continue
        address, size = about["Addr"], about["Bytes"]
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
    return [tuple(block) for block in blocks]


def _kinds(blocks, marks):
    """(kind, module) of each block: what was marked at its address while it lived; PARAMETERS above all."""
    at = defaultdict(list)
    for when, address, kind, name in marks:
        at[address].append((when, kind, name))
    found = []
    for address, _, born, died in blocks:
        mine = [mark for mark in at[address] if born <= mark[0] <= died]
        rank = {PARAMETERS: 0, STATE: 1, GRADIENTS: 2, CASTS: 3, GATHERED: 4, ACTIVATIONS: 5}
        best = min(mine, key=lambda mark: rank[mark[1]], default=(0, OTHER, ""))
        found.append(best[1:])
    return found

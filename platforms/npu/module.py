"""`torch.npu` of the emulated device: the functions that torch_npu offers, under the same names.

Which names there are: https://www.hiascend.com/document (torch_npu API reference); names.json lists
those of the real package. A name that the emulator lacks says so when it is used. Memory is in bytes, and nothing of it
is cached. Each card has its own generator of random numbers, as on the hardware. Streams and events do nothing.
"""

import contextlib
import json
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import torch

from . import amp
from .cards import card_of

EMULATED = True
COUNTERS = "bytes peak_bytes allocations h2d d2h syncs ops kernels int32_targets pinned".split()
matmul, conv = SimpleNamespace(allow_hf32=False), SimpleNamespace(allow_hf32=True)  # without effect on a CPU
_c = torch.ops.helpers_npu
_chosen = []  # the cards given to set_device, in order
_fractions = {}  # of a card's memory that this process may have


def is_available() -> bool:
    """Whether there is a card: always, it is emulated."""
    return True


def is_initialized() -> bool:
    """Whether this process has used a card."""
    return _c.used()


def init() -> None:
    """Nothing: a card is ready at its first use."""


_lazy_init = init


def _is_in_bad_fork() -> bool:
    return _c.bad_fork()


def device_count() -> int:
    """Cards of this emulated host, 1 to 8: HELPERS_NPU_DEVICES."""
    return _c.device_count()


def current_device() -> int:
    """The card that `npu` without a number means in this thread."""
    return _c.current_device()


def set_device(device) -> None:
    """Make a card this thread's. RuntimeError if it is not there."""
    index = card_of(device)
    _c.set_device(index)
    _chosen.append(index)


def synchronize(device=None) -> None:
    """Nothing to wait for: an operator has finished when it returns. RuntimeError for a card that is not there."""
    _c.counters(card_of(device))


def get_device_name(device=None) -> str:
    """The card's name, which says that it is emulated."""
    _c.counters(card_of(device))
    return "Ascend910 (emulated on the CPU)"


def get_device_properties(device=None):
    """Name and memory (bytes) of a card."""
    return SimpleNamespace(name=get_device_name(device), total_memory=_c.capacity())


def get_device_capability(device=None):
    """None, as in torch_npu: compute capability is NVIDIA's notion."""
    return None


def can_device_access_peer(device, peer) -> bool:
    """Whether a card can read another's memory: copies between cards work."""
    return card_of(device) != card_of(peer)


def ipc_collect() -> None:
    """Nothing: memory is not shared between processes."""


def get_amp_supported_dtype() -> list:
    """Formats that torch.autocast("npu") takes."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported() -> bool:
    """Whether bfloat16 can be computed in."""
    return True


def is_autocast_enabled() -> bool:
    """Whether torch.autocast("npu") is on in this thread."""
    return torch.is_autocast_enabled("npu")


def set_autocast_enabled(enabled) -> None:
    """Switch torch.autocast("npu") on or off in this thread."""
    torch.set_autocast_enabled("npu", enabled)


def get_autocast_dtype():
    """The format that autocast computes in."""
    return torch.get_autocast_dtype("npu")


def set_autocast_dtype(dtype) -> None:
    """Choose the format that autocast computes in."""
    torch.set_autocast_dtype("npu", dtype)


class device(contextlib.AbstractContextManager):
    """`with torch.npu.device(1):` makes a card this thread's, for a while."""

    def __init__(self, device):
        self.index = card_of(device)

    def __enter__(self):
        self.before = current_device()
        if self.index >= 0:
            _c.set_device(self.index)

    def __exit__(self, *_):
        _c.set_device(self.before)


class device_of(device):
    """`with torch.npu.device_of(tensor):` the same for the card of a tensor."""

    def __init__(self, tensor):
        super().__init__(tensor.get_device() if tensor.device.type == "npu" else -1)


def emulator_stats(device=None) -> dict:
    """What was counted on a card: operators, kernels that it would have compiled, copies, bytes, int32 labels.

    The emulator's own; torch_npu has no such function.
    """
    return dict(zip(COUNTERS, _c.counters(card_of(device)), strict=True))


def memory_allocated(device=None) -> int:
    """Bytes held by tensors on a card."""
    return _c.counters(card_of(device))[0]


def max_memory_allocated(device=None) -> int:
    """The most bytes held at once since the start or the last reset."""
    return _c.counters(card_of(device))[1]


def reset_peak_memory_stats(device=None) -> None:
    """Start a new measurement of `max_memory_allocated`."""
    _c.reset_peak(card_of(device))


def mem_get_info(device=None):
    """(free, total) bytes of a card; HELPERS_NPU_MEMORY_MB sets the total."""
    total = _c.capacity()
    return total - memory_allocated(device), total


def memory_stats(device=None) -> dict:
    """The allocator's numbers under torch_npu's keys."""
    now, peak, allocations, *_ = _c.counters(card_of(device))
    return {
        "allocated_bytes.all.current": now,
        "allocated_bytes.all.peak": peak,
        "reserved_bytes.all.current": now,
        "reserved_bytes.all.peak": peak,
        "allocation.all.allocated": allocations,
        "num_ooms": 0,
    }


def memory_summary(device=None, abbreviated=False) -> str:
    """The same for people."""
    now, peak = memory_allocated(device), max_memory_allocated(device)
    total = _c.capacity() / 2**20
    used = f"{now / 2**20:.1f} MiB now, {peak / 2**20:.1f} MiB at most, of {total:.0f} MiB"
    return f"npu:{card_of(device)} (emulated): {used}"


def set_per_process_memory_fraction(fraction, device=None) -> None:
    """Let this process have no more than that part of a card's memory."""
    if not isinstance(fraction, (int, float)) or not 0 <= fraction <= 1:
        raise ValueError(f"fraction is {fraction!r}; give a number from 0 to 1")
    _c.set_fraction(card_of(device), float(fraction))
    _fractions[card_of(device)] = float(fraction)


def get_per_process_memory_fraction(device=None) -> float:
    """The part of a card's memory that this process may have."""
    return _fractions.get(card_of(device), 1.0)


def empty_cache() -> None:
    """Nothing: there is no cache."""


memory_reserved = memory_cached = memory_allocated
max_memory_reserved = max_memory_cached = max_memory_allocated
reset_max_memory_allocated = reset_max_memory_cached = reset_accumulated_memory_stats = reset_peak_memory_stats


class _Generators:
    """torch.npu.default_generators: each card's torch.Generator state, by number."""

    def __len__(self):
        return _c.device_count()

    def __getitem__(self, card):
        generator = torch.Generator(f"npu:{range(len(self))[card]}")
        generator.set_state(_c.get_rng_state(range(len(self))[card]))
        return generator


default_generators = _Generators()


def manual_seed(seed) -> None:
    """Seed the current card."""
    _c.manual_seed(_c.current_device(), int(seed) % 2**63)


def manual_seed_all(seed) -> None:
    """Seed every card; torch.manual_seed does it as well."""
    for card in range(_c.device_count()):
        _c.manual_seed(card, int(seed) % 2**63)


def seed() -> None:
    """Seed the current card at random."""
    manual_seed(torch.Generator().seed())


def seed_all() -> None:
    """Seed every card at random, all alike."""
    manual_seed_all(torch.Generator().seed())


def initial_seed() -> int:
    """What the current card was seeded with."""
    return _c.initial_seed(_c.current_device())


def get_rng_state(device="npu"):
    """State of a card's generator, a uint8 tensor on the CPU."""
    return _c.get_rng_state(card_of(device))


def set_rng_state(state, device="npu") -> None:
    """Put a card's generator into a state that `get_rng_state` gave."""
    _c.set_rng_state(card_of(device), state)


def get_rng_state_all() -> list:
    """The states of all cards."""
    return [_c.get_rng_state(card) for card in range(_c.device_count())]


def set_rng_state_all(states) -> None:
    """Put all cards' generators into these states."""
    for card, state in enumerate(states):
        _c.set_rng_state(card, state)


def _say_so():
    warnings.warn(
        "streams and events do nothing here: an operator has finished when it returns, and times between events "
        "are the CPU's (emulated NPU)",
        stacklevel=3,
    )


class Stream(torch.Stream):
    """A queue of work that is always empty."""

    def __new__(cls, device=None, priority=0, **_):
        _say_so()
        return super().__new__(cls, device=torch.device("npu", card_of(device)))

    def wait_event(self, event):
        """Return at once."""

    def record_event(self, event=None):
        """Note the time in an event, a new one if need be."""
        event = event or Event(enable_timing=True)
        event.record(self)
        return event


class Event:
    """A mark in a stream. With `enable_timing` it remembers the host's clock."""

    def __init__(self, enable_timing=False, blocking=False, interprocess=False):
        _say_so()
        self._timed, self._at = enable_timing, None

    def record(self, stream=None):
        """Note the time."""
        self._at = time.perf_counter()

    def elapsed_time(self, end) -> float:
        """Milliseconds of the host's clock from this event to `end`."""
        if not (self._timed and end._timed and self._at and end._at):
            raise RuntimeError("both events must be made with enable_timing=True and recorded (emulated NPU)")
        return (end._at - self._at) * 1000

    def synchronize(self):
        """Return at once."""

    def wait(self, stream=None):
        """Return at once."""

    def query(self):
        """True: all work is done."""
        return True


def current_stream(device=None):
    """The stream that work goes to: the only one."""
    return torch.Stream.__new__(Stream, device=torch.device("npu", card_of(device)))


default_stream = current_stream


def set_stream(stream) -> None:
    """Nothing: there is one stream."""


class StreamContext(contextlib.AbstractContextManager):
    """`with torch.npu.stream(s):` changes nothing."""

    def __init__(self, stream):
        self.stream = stream

    def __exit__(self, *_):
        return None


def stream(stream):
    """A context in which work goes to `stream`, which does nothing."""
    return StreamContext(stream)


def is_current_stream_capturing() -> bool:
    """False: there are no graphs."""
    return False


class _TensorType(type):
    """A class that nothing is an instance of by construction, but every fitting tensor by test."""

    def __instancecheck__(cls, value):
        return isinstance(value, torch.Tensor) and value.device.type == "npu" and value.dtype == cls.dtype

    def __call__(cls, *sizes_or_data):
        """FloatTensor(2, 3) is uninitialised memory of that shape, FloatTensor([1, 2]) holds the numbers."""
        if len(sizes_or_data) == 1 and not isinstance(sizes_or_data[0], (int, torch.Size)):
            return torch.as_tensor(sizes_or_data[0]).to(device="npu", dtype=cls.dtype)
        return torch.empty(*(sizes_or_data or (0,)), dtype=cls.dtype, device="npu")


def _tensor_type(name, dtype):
    """The old way of naming a format together with a device."""
    return _TensorType(name, (), {"dtype": dtype, "is_cuda": False, "__module__": "torch.npu"})


BoolTensor = _tensor_type("BoolTensor", torch.bool)
ByteTensor = _tensor_type("ByteTensor", torch.uint8)
CharTensor = _tensor_type("CharTensor", torch.int8)
ShortTensor = _tensor_type("ShortTensor", torch.int16)
IntTensor = _tensor_type("IntTensor", torch.int32)
LongTensor = _tensor_type("LongTensor", torch.int64)
HalfTensor = _tensor_type("HalfTensor", torch.float16)
BFloat16Tensor = _tensor_type("BFloat16Tensor", torch.bfloat16)
FloatTensor = _tensor_type("FloatTensor", torch.float32)
DoubleTensor = _tensor_type("DoubleTensor", torch.float64)


def __getattr__(name):
    if name in json.loads((Path(__file__).parent / "names.json").read_text())["npu"]:
        raise AttributeError(f"torch.npu.{name}: torch_npu has it, the emulated NPU does not")
    raise AttributeError(f"module 'torch.npu' has no attribute {name!r}")

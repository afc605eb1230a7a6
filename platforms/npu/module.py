"""`torch.npu` of the emulated device: the functions that torch_npu offers, under the same names.

Which names there are: https://www.hiascend.com/document (torch_npu API reference); names.json lists
those of the real package. A name that the emulator lacks says so when it is used. Memory is in bytes, and nothing of it
is cached. Each card has its own generator of random numbers, as on the hardware. Streams and events do nothing.
"""

import contextlib
import json
import time
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch

from . import amp
from .cards import card_of

EMULATED = True
COUNTERS = "bytes peak_bytes allocations h2d d2h syncs ops kernels int32_targets pinned".split()
_c = torch.ops.helpers_npu
_chosen = []  # the cards given to set_device, in order

ANSWERS = {  # of functions that always answer the same
    "is_available": True,
    "is_bf16_supported": True,
    "is_current_stream_capturing": False,
    "get_amp_supported_dtype": [torch.float16, torch.bfloat16],
    "get_device_capability": None,  # as in torch_npu: compute capability is NVIDIA's notion
    "init": None,
    "_lazy_init": None,
    "ipc_collect": None,
    "empty_cache": None,
    "set_stream": None,
}
is_initialized, _is_in_bad_fork, device_count, current_device = _c.used, _c.bad_fork, _c.device_count, _c.current_device
is_autocast_enabled = partial(torch.is_autocast_enabled, "npu")
set_autocast_enabled = partial(torch.set_autocast_enabled, "npu")
get_autocast_dtype = partial(torch.get_autocast_dtype, "npu")
set_autocast_dtype = partial(torch.set_autocast_dtype, "npu")
matmul, conv = SimpleNamespace(allow_hf32=False), SimpleNamespace(allow_hf32=True)  # without effect on a CPU


def set_device(device) -> None:
    """Make a card this thread's. RuntimeError if it is not there."""
    index = card_of(device)
    _c.set_device(index)
    _chosen.append(index)


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


def device_of(tensor):
    """`with torch.npu.device_of(tensor):` the same for the card of a tensor, if it is on one."""
    return device(tensor.get_device() if tensor.device.type == "npu" else -1)


def synchronize(device=None) -> None:
    """Nothing to wait for: an operator has finished when it returns. RuntimeError for a card that is not there."""
    _c.counters(card_of(device))


def get_device_name(device=None) -> str:
    """The card's name, which says that it is emulated."""
    synchronize(device)
    return "Ascend910 (emulated on the CPU)"


def get_device_properties(device=None):
    """Name and memory (bytes) of a card."""
    return SimpleNamespace(name=get_device_name(device), total_memory=_c.capacity())


# -- memory -------------------------------------------------------------------------------


def emulator_stats(device=None) -> dict:
    """What was counted on a card: operators, kernels that it would have compiled, copies, bytes, int32 labels.

    The emulator's own; torch_npu has no such function.
    """
    return dict(zip(COUNTERS, _c.counters(card_of(device)), strict=True))


def memory_allocated(device=None) -> int:
    """Bytes held by tensors on a card."""
    return emulator_stats(device)["bytes"]


def max_memory_allocated(device=None) -> int:
    """The most bytes held at once since the start or the last reset."""
    return emulator_stats(device)["peak_bytes"]


memory_reserved, max_memory_reserved = memory_allocated, max_memory_allocated


def reset_peak_memory_stats(device=None) -> None:
    """Start a new measurement of `max_memory_allocated`."""
    _c.reset_peak(card_of(device))


reset_max_memory_allocated = reset_peak_memory_stats


def mem_get_info(device=None):
    """(free, total) bytes of a card; HELPERS_NPU_MEMORY_MB sets the total."""
    return _c.capacity() - memory_allocated(device), _c.capacity()


# -- random numbers -----------------------------------------------------------------------


def manual_seed(seed) -> None:
    """Seed the current card."""
    _c.manual_seed(current_device(), int(seed) % 2**63)


def manual_seed_all(seed) -> None:
    """Seed every card; torch.manual_seed does it as well."""
    for card in range(device_count()):
        _c.manual_seed(card, int(seed) % 2**63)


def initial_seed() -> int:
    """What the current card was seeded with."""
    return _c.initial_seed(current_device())


def get_rng_state(device="npu"):
    """State of a card's generator, a uint8 tensor on the CPU."""
    return _c.get_rng_state(card_of(device))


def set_rng_state(state, device="npu") -> None:
    """Put a card's generator into a state that `get_rng_state` gave."""
    _c.set_rng_state(card_of(device), state)


def get_rng_state_all() -> list:
    """The states of all cards."""
    return [get_rng_state(card) for card in range(device_count())]


def set_rng_state_all(states) -> None:
    """Put all cards' generators into these states."""
    for card, state in enumerate(states):
        set_rng_state(state, card)


# -- streams and events -------------------------------------------------------------------


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
        """Return at once, as all here does: FSDP's copies wait for each other by it."""


class Event:
    """A mark in a stream. With `enable_timing` it remembers the host's clock."""

    def __init__(self, enable_timing=False, **_):
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
stream = contextlib.nullcontext  # `with torch.npu.stream(s):` changes nothing


# -- the old way of naming a format together with a device --------------------------------


class _TensorType(type):
    """A class that nothing is an instance of by construction, but every fitting tensor by test."""

    def __instancecheck__(cls, value):
        return isinstance(value, torch.Tensor) and value.device.type == "npu" and value.dtype == cls.dtype

    def __call__(cls, *sizes_or_data):
        """FloatTensor(2, 3) is uninitialised memory of that shape, FloatTensor([1, 2]) holds the numbers."""
        if len(sizes_or_data) == 1 and not isinstance(sizes_or_data[0], (int, torch.Size)):
            return torch.as_tensor(sizes_or_data[0]).to(device="npu", dtype=cls.dtype)
        return torch.empty(*(sizes_or_data or (0,)), dtype=cls.dtype, device="npu")


TYPES = {
    f"{name}Tensor": _TensorType(f"{name}Tensor", (), {"dtype": dtype, "is_cuda": False, "__module__": "torch.npu"})
    for name, dtype in {
        "Bool": torch.bool,
        "Byte": torch.uint8,
        "Char": torch.int8,
        "Short": torch.int16,
        "Int": torch.int32,
        "Long": torch.int64,
        "Half": torch.float16,
        "BFloat16": torch.bfloat16,
        "Float": torch.float32,
        "Double": torch.float64,
    }.items()
}


def __getattr__(name):
    if name in ANSWERS:
        return lambda *_, **__: ANSWERS[name]
    if name in TYPES:
        return TYPES[name]
    if name in json.loads((Path(__file__).parent / "names.json").read_text())["npu"]:
        raise AttributeError(f"torch.npu.{name}: torch_npu has it, the emulated NPU does not")
    raise AttributeError(f"module 'torch.npu' has no attribute {name!r}")

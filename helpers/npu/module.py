"""`torch.npu` of the emulated device: the functions that torch_npu offers, under the same names.

Which names there are: https://www.hiascend.com/document (torch_npu API reference); names.json lists
those of the real package. A name that the emulator lacks says so when it is used.
"""

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace

import torch

from . import amp
from .cards import card_of
from .legacy import (
    BFloat16Tensor,
    BoolTensor,
    ByteTensor,
    CharTensor,
    DoubleTensor,
    FloatTensor,
    HalfTensor,
    IntTensor,
    LongTensor,
    ShortTensor,
)
from .memory import (
    empty_cache,
    get_per_process_memory_fraction,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from .randomness import (
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from .streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    is_current_stream_capturing,
    set_stream,
    stream,
)

EMULATED = True
COUNTERS = "bytes peak_bytes allocations h2d d2h syncs ops kernels int32_targets pinned".split()
matmul, conv = SimpleNamespace(allow_hf32=False), SimpleNamespace(allow_hf32=True)  # without effect on a CPU
_c = torch.ops.helpers_npu
_chosen = []  # the cards given to set_device, in order


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


def __getattr__(name):
    if name in json.loads((Path(__file__).parent / "names.json").read_text())["npu"]:
        raise AttributeError(f"torch.npu.{name}: torch_npu has it, the emulated NPU does not")
    raise AttributeError(f"module 'torch.npu' has no attribute {name!r}")

"""Memory of the emulated cards, as torch.npu reports it (bytes). Nothing is cached: what is free is free."""

import torch

from .cards import card_of

_c = torch.ops.helpers_npu


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


_fractions = {}
memory_reserved = memory_cached = memory_allocated
max_memory_reserved = max_memory_cached = max_memory_allocated
reset_max_memory_allocated = reset_max_memory_cached = reset_accumulated_memory_stats = reset_peak_memory_stats

"""What a process did on its cards: how a run is shown to have used the device."""

import os
import sys

from .cards import is_emulated, visible_cards


def of_process() -> dict:
    """What this process did on the host's cards.

    Returns:
        pid, rank; set_device: the cards it was called with; devices: by card (its number on the
        host, as text) what ran there; pinned: host buffers that were pinned; collectives and
        collective_bytes by name; amp: the loss scales of apex. On real cards only pid, rank, devices
        ({"peak_bytes"}) and amp are known.
    """
    import torch
    import torch.distributed as dist

    apex = sys.modules.get("platforms.npu.apex.amp")
    process = {"pid": os.getpid(), "amp": apex.state_dict() if apex else {}}
    numbers = range(torch.npu.device_count())
    if not is_emulated():
        used = {card: torch.npu.max_memory_allocated(card) for card in numbers}
        rank = dist.get_rank() if dist.is_initialized() else None
        return process | {"rank": rank, "devices": {str(c): {"peak_bytes": b} for c, b in used.items() if b}}

    from . import hccl, module

    cards = visible_cards()
    stats = {str(cards[n]): torch.npu.emulator_stats(n) for n in numbers}
    return process | {
        "rank": hccl.rank,
        "set_device": [cards[n] for n in module._chosen],
        "devices": {card: counted for card, counted in stats.items() if counted["ops"] or counted["allocations"]},
        "pinned": torch.npu.emulator_stats(0)["pinned"],
        "collectives": dict(hccl.calls),
        "collective_bytes": dict(hccl.bytes_sent),
    }

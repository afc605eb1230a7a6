"""What a process did on its cards, as one JSON file when it ends: how a run is shown to have used the device."""

import atexit
import json
import os
import sys
from pathlib import Path

from ..paths import replace_file


def of_process() -> dict:
    """Counters of this process: pid, cards given to set_device, by card what ran there, collectives by name."""
    import torch

    from . import hccl, module

    cards = {card: torch.npu.emulator_stats(card) for card in range(torch.npu.device_count())}
    used = {str(card): stats for card, stats in cards.items() if stats["ops"] or stats["allocations"]}
    apex = sys.modules.get("helpers.npu.apex.amp")
    return {
        "pid": os.getpid(),
        "rank": hccl.rank,
        "set_device": list(module._chosen),
        "devices": used,
        "pinned": cards[0]["pinned"],
        "collectives": dict(hccl.calls),
        "collective_bytes": dict(hccl.bytes_sent),
        "amp": apex.state_dict() if apex and hasattr(apex, "state_dict") else {},
    }


def write_at_exit(folder) -> None:
    """Leave a file in `folder` when this process ends, if it used a card or a collective."""
    process = os.getpid()

    def write():
        if os.getpid() != process:  # a forked DataLoader worker inherits this function
            return
        counted = of_process()
        if counted["devices"] or counted["collectives"]:
            replace_file(Path(folder, f"{process}.json"), json.dumps(counted))

    atexit.register(write)

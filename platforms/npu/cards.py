"""The cards of the emulated host: whether there are any, which a process sees, and which one is meant by "npu:1"."""

import os
import sys

MOST_CARDS = 8


def is_emulated() -> bool:
    """Whether the emulated device is loaded in this process."""
    torch = sys.modules.get("torch")
    return bool(torch and getattr(getattr(torch, "npu", None), "EMULATED", False))


def check_settings(environment) -> None:
    """ValueError if the emulated host that `environment` describes cannot be had."""
    limits = {"HELPERS_NPU_DEVICES": (1, MOST_CARDS, "cards"), "HELPERS_NPU_MEMORY_MB": (1, 1 << 20, "MiB for a card")}
    for name, (least, most, unit) in limits.items():
        text = environment.get(name) or str(most)
        if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
            raise ValueError(f"an emulated host has {least} to {most} {unit}, not {text} ({name})")
    visible_cards(environment)


def visible_cards(environment=os.environ) -> list:
    """The host's numbers of the cards that a process sees: ASCEND_RT_VISIBLE_DEVICES, or all.

    Raises:
        ValueError: it names what is no card of this host.
    """
    cards = list(range(int(environment.get("HELPERS_NPU_DEVICES") or MOST_CARDS)))
    text = environment.get("ASCEND_RT_VISIBLE_DEVICES")
    if not text:
        return cards
    chosen = [int(part) if part.isascii() and part.isdigit() else -1 for part in text.split(",")]
    if not set(chosen) <= set(cards) or len(set(chosen)) < len(chosen):
        raise ValueError(f"ASCEND_RT_VISIBLE_DEVICES is {text!r}; give different cards of 0 to {cards[-1]}, as 0,2")
    return chosen


def card_of(device=None) -> int:
    """The number of a card; None and "npu" mean the current one. -1 stands for no card: a tensor on the CPU.

    Raises:
        ValueError: a device of another kind.
        TypeError: not a device.
    """
    import torch

    if isinstance(device, bool) or not isinstance(device, (int, str, torch.device, type(None))):
        raise TypeError(f"a card is meant by a number, 'npu:1' or a torch.device, not by {device!r}")
    if isinstance(device, int):
        return device
    device = torch.device("npu" if device is None else device)
    if device.type != "npu":
        raise ValueError(f"expected an npu device, got {device} (emulated NPU)")
    return torch.ops.helpers_npu.current_device() if device.index is None else device.index

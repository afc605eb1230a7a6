"""Which card is meant by None, 1, "npu:1" or a torch.device."""

import torch


def card_of(device=None) -> int:
    """The number of a card; None and "npu" mean the current one. -1 is for nobody's: a tensor on the CPU.

    Raises:
        ValueError: a device of another kind.
        TypeError: not a device.
    """
    if isinstance(device, bool) or not isinstance(device, (int, str, torch.device, type(None))):
        raise TypeError(f"a card is meant by a number, 'npu:1' or a torch.device, not by {device!r}")
    if isinstance(device, int):
        return device
    device = torch.device("npu" if device is None else device)
    if device.type != "npu":
        raise ValueError(f"expected an npu device, got {device} (emulated NPU)")
    return torch.ops.helpers_npu.current_device() if device.index is None else device.index

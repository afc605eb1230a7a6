"""How fast a device can compute at all, and how much a training step has to: the two sides of "share of the peak"."""

import time
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from helpers import device, measure
from helpers.training import models

BF16_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")  # of /proc/cpuinfo, the last on ARM: they multiply bfloat16
SIZES = {"cpu": (512, 1024, 2048), "cuda": (4096, 8192)}
PATIENCE = 1.0  # s: a size that takes longer (a format the device has no instructions for) is the last one tried


def matmul_peak(dtype, where=None, sizes=None, repeats=5) -> dict:
    """The highest measured rate of a product of two square matrices, FLOP/s, with as many threads as torch now has.

    Returns measure.summary of `repeats` samples at the best size, with "size".
    """
    where = torch.device(where or "cpu")
    best = None
    for size in sizes or SIZES.get(where.type, SIZES["cuda"]):
        one, other = (torch.randn(size, size, device=where).to(dtype) for _ in range(2))
        rates, spent = [], 0.0
        for number in range(repeats + 2):
            device.synchronize(where)
            began = time.perf_counter()
            one @ other
            device.synchronize(where)
            spent = time.perf_counter() - began
            if number >= 2:
                rates.append(2 * size**3 / spent)
        found = {**measure.summary(rates), "size": size}
        if best is None or found["median"] > best["median"]:
            best = found
        if spent > PATIENCE / 8:  # the next one has eight times the work
            break
    return best


def flops(step) -> int:
    """Floating-point operations of `step()`: two for a multiplication and its addition.

    Convolutions and products of matrices count, forward and backward; what is done to each number on its own
    (normalisation, activations, the update of the weights) does not. (torch.utils.flop_counter)
    """
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


@lru_cache
def flops_of_image(model, pixels, classes=10, backward=True) -> float:
    """FLOPs of forward, and of backward, for one image; nothing is computed, only shapes are followed."""
    with torch.device("meta"):
        net, images = models.build(model, classes), torch.empty(2, 3, pixels, pixels)
        labels = torch.empty(2, dtype=torch.int64)
    if not backward:
        return flops(lambda: net(images)) / 2
    return flops(lambda: F.cross_entropy(net(images), labels).backward()) / 2


def bf16_flags() -> list:
    """Which of BF16_FLAGS this CPU has."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    flags = next((line.split(":", 1)[1].split() for line in lines if line.startswith(("flags", "Features"))), [])
    return [flag for flag in BF16_FLAGS if flag in flags]


def has_bf16() -> bool:
    """Whether the CPU computes in bfloat16 itself, so that it may be faster than fp32."""
    return bool(bf16_flags())


def why_no_bf16() -> str:
    """A sentence on what the CPU lacks; "" if it lacks nothing."""
    if has_bf16():
        return ""
    return f"this CPU ({device.machine('cpu').name}) has none of {', '.join(BF16_FLAGS)}, so bf16 is emulated"

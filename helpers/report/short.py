"""A ladder of half a minute, for a report where nothing was recorded yet. Notebook 10 and recorded/machines use it."""

from .. import device
from ..config import RunConfig

TOO_SLOW = 0.5  # of fp32's speed: where bf16 is emulated, its run would take longer than all others together
SETTINGS = dict(model="resnet8", data="digits", lr=0.02, schedule="linear", augment=False, epochs=4, evaluate_every=1)


def short_ladder(kind=None) -> list:
    """RunConfigs: one device, its half of the batch alone, two devices, these in bf16, and with twice the batch.

    The second is a short run that is only timed: it tells communication from a smaller batch. That in bf16 is left
    out where the devices only emulate it.

    Args:
        kind: of the devices (default: the best there is).
    """
    plain = RunConfig(**SETTINGS, device=kind)
    alone = plain.but(local_batch=32, steps=30, evaluate=False, evaluate_every=None, label="baseline · batch 32")
    two = plain.but(strategy="ddp", nproc_per_node=2)
    half = [two.but(precision="bf16-mixed")] if device.dtypes(kind).get("bfloat16", 0) > TOO_SLOW else []
    return [plain, alone, two, *half, two.but(local_batch=64, label="DDP ×2 · batch 128")]

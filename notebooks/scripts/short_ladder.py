"""A ladder of half a minute, for a report where nothing was recorded yet. Notebook 10 and recorded/machines use it."""

from helpers import RunConfig, device

TOO_SLOW = 0.5  # of fp32's speed: where bf16 is emulated, its run would take longer than all others together
SETTINGS = dict(model="resnet8", data="digits", lr=0.02, schedule="linear", augment=False, epochs=4, evaluate_every=1)


def short_ladder(kind=None) -> list:
    """RunConfigs: one device, two devices, these in bf16 unless they only emulate it, and with twice the batch."""
    one = RunConfig(**SETTINGS, device=kind)
    two = one.but(strategy="ddp", nproc_per_node=2)
    half = [two.but(precision="bf16-mixed")] if device.dtypes(kind).get("bfloat16", 0) > TOO_SLOW else []
    return [one, two, *half, two.but(local_batch=64, label="DDP ×2 · batch 128")]

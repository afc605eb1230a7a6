"""What each study runs."""

from dataclasses import replace

from .. import device
from ..config import RunConfig
from ..training.precision import LEVELS

SEEDS = (0, 1, 2)


def batch_and_accuracy():
    """The trap of the larger global batch on real images, and what wins the accuracy back."""
    kind = _kind(4)
    plain = RunConfig(
        model="resnet8", data="digits", epochs=16, lr=0.01, augment=False, evaluate_every=1, device=kind, threads=1,
        local_batch=64,
    )  # fmt: skip
    two = plain.but(strategy="ddp", nproc_per_node=2, local_batch=64)
    four = plain.but(strategy="ddp", nproc_per_node=4, local_batch=64)
    linear, warm, cool = dict(lr_scaling="linear", local_batch=64), dict(lr_warmup_epochs=1), dict(schedule="cooldown")
    root = dict(lr_scaling="sqrt", local_batch=64)
    small = four.but(local_batch=1, epochs=3, lr=0.005)
    rows = {
        "1 rank": plain,
        "2 ranks, naive": two,
        "4 ranks, naive": four,
        "4 ranks, more epochs": four.but(epochs=48),
        "4 ranks, linear": four.but(**linear),
        "4 ranks, linear + warm-up": four.but(**linear, **warm),
        "4 ranks, linear + warm-up + cooldown": four.but(**linear, **warm, **cool),
        "4 ranks, sqrt + warm-up + cooldown": four.but(**root, **warm, **cool),
        "2 ranks, linear + warm-up + cooldown": two.but(**linear, **warm, **cool),
        "1 rank, cooldown": plain.but(**cool),
        "1 rank, 4 micro-batches, linear + warm-up + cooldown": plain.but(accumulation=4, **linear, **warm, **cool),
        "small local batch, local statistics": small,
        "small local batch, SyncBatchNorm": small.but(sync_batch_norm=True),
    }
    return labelled(rows, SEEDS)


def precision():
    """The levels at one and two ranks: time, accuracy and memory."""
    kind = _kind(2)
    plain = RunConfig(
        model="resnet8", data="digits", epochs=8, lr=0.02, schedule="cosine", augment=False, device=kind, threads=1
    )
    levels = [level for level in ("fp32", "O1-bf16", "O2-bf16", "O1", "O2") if _runs(level, kind)]
    rungs = (plain, plain.but(strategy="ddp", nproc_per_node=2))
    return [rung.but(precision=level) for rung in rungs for level in levels]


def precision_by_batch():
    """How the gain of a half format grows with the work in a step."""
    kind = device.machine().kind
    fast = [level for level in ("O1-bf16", "O1") if device.dtypes(kind).get(_dtype(level), 0) > 1]
    cases = [("resnet18", "mock", batch) for batch in (2, 4, 16, 64, 256)]
    cases += [("resnet50", mock_at_64, batch) for batch in (2, 4, 16, 64)]
    configs = []
    for model, images, batch in cases:
        for level in ("fp32", *fast):
            for last in (False, True):
                configs.append(RunConfig(
                    model=model, data=images, local_batch=batch, precision=level, channels_last=last, lr=0.01,
                    steps=23 if batch < 64 else 11, augment=False, evaluate=False, device=kind, threads=1,
                    label=f"{model} {level}{' · channels last' * last}, batch {batch}",
                ))  # fmt: skip
    return configs


def mock_at_64():
    """(train, None): the mock set's first 1,024 images, enlarged to 64×64 pixels."""
    import torch.nn.functional as F

    from ..data import sets

    sets.ensure("mock")
    small = sets.load("mock", "train")
    images = F.interpolate(small.images[:1024].float(), size=(64, 64), mode="bilinear").byte()
    return replace(small, images=images, labels=small.labels[:1024]), None


def compiler():
    """What the tuner finds for five models in two formats, each plan timed in turn with eager."""
    kind = device.machine().kind
    cases = [
        (model, level) for model in ("resnet18", "resnet50", "silunet", "silu_mlp", "transformer")
        for level in ("fp32", "O1-bf16") if _runs(level, kind)
    ]  # fmt: skip
    return [
        RunConfig(
            model=model, data="mock", local_batch=16, precision=level, compiler="auto", lr=0.01, steps=60,
            augment=False, evaluate=False, device=kind, threads=1, label=f"{model}{' · bf16' * (level != 'fp32')}",
        )
        for model, level in cases
    ]  # fmt: skip


def xla():
    """DDP on two CPU processes, and the same training through XLA."""
    plain = RunConfig(
        model="silu_mlp", strategy="ddp", nproc_per_node=2, global_batch=64, steps=20, lr=0.005, augment=False,
        threads=1, device="cpu",
    )  # fmt: skip
    return [plain, plain.but(compiler="xla", device=None)]


STUDIES = {
    "batch_and_accuracy": batch_and_accuracy,
    "precision": precision,
    "precision_by_batch": precision_by_batch,
    "compiler": compiler,
    "xla": xla,
}


def labelled(rows, seeds):
    """A config for each row and seed, one seed after the other, so that a slow hour is shared by all rows."""
    return [replace(config, label=label, seed=seed) for seed in seeds for label, config in rows.items()]


def _kind(devices):
    """The device kind for runs on so many devices: with fewer accelerators, CPU processes play them."""
    here = device.machine()
    return here.kind if here.count >= devices else "cpu"


def _runs(level, kind):
    return _dtype(level) in device.dtypes(kind)


def _dtype(level):
    return LEVELS[level].dtype

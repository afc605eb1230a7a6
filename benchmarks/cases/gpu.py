"""What tools/gpu_check.py trains: one model on images shaped as CIFAR-10's, in variants, and a loop by hand."""

import os
import statistics
import time

import torch
import torch.nn.functional as F

import helpers
from helpers.data import loaders
from helpers.data.sets import ImageSet
from helpers.training import models


def images(count, side=32):
    """(train, None): random pictures, shaped as CIFAR-10's; speed does not depend on what they show."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, side, side), generator=generator, dtype=torch.uint8)
    labels = torch.arange(count) % 10
    return ImageSet("cifar-shaped", pixels, labels, tuple("0123456789"), (0.5,) * 3, (0.25,) * 3, True), None


def cifar_shaped():
    """As many images as CIFAR-10 has."""
    return images(50_000)


def few_images():
    """Enough for a run of a few steps."""
    return images(512)


def _built(tf32=False, graphs=False):
    torch.backends.cudnn.allow_tf32 = tf32  # which torch allows by default, unlike TF32 in products of matrices
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    if graphs:
        from torch._inductor import config

        config.triton.cudagraphs = True
    return models.build(os.environ["GPU_CHECK_MODEL"], 10)


def exact():
    """The model without TF32."""
    return _built()


def tf32():
    """The model with TF32 in convolutions and products."""
    return _built(tf32=True)


def graphed():
    """The model whose compiled code is replayed as CUDA graphs."""
    return _built(tf32=True, graphs=True)


def by_hand(config, warm, synchronised):
    """Seconds of a step in the shortest loop that trains the same: its median, or its mean without waiting."""
    with helpers.distributed() as world:
        data, _ = config.data()
        loader = loaders.make_loader(data, device=world.device, global_batch=config.global_batch)
        model = config.model().to(world.device, memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
        spent, batches = [], iter(loader)
        for step in range(config.steps):
            if step == warm or (synchronised and step > warm):
                helpers.device.synchronize(world.device)
            spent.append(time.perf_counter())
            pixels, labels = next(batches)
            optimizer.zero_grad()
            with torch.autocast(world.device.type, torch.bfloat16):
                outputs = model(pixels.contiguous(memory_format=torch.channels_last))
            F.cross_entropy(outputs.float(), labels).backward()
            optimizer.step()
        helpers.device.synchronize(world.device)
        spent = [*spent[warm:], time.perf_counter()]
        if not synchronised:
            return (spent[-1] - spent[0]) / (len(spent) - 1)
        return statistics.median(b - a for a, b in zip(spent, spent[1:], strict=False))


def touch():
    """Use the device."""
    with helpers.distributed() as world:
        return torch.ones(1, device=world.device).sum().item()

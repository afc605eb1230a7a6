"""Training in bfloat16 with channels last against fp32, one device, one thread of the CPU each.

The same weights and images for all variants of a model; their steps take turns, so that a machine
that gets slower does so for all alike.
"""

import time

import torch
import torch.nn.functional as F

from helpers import device, measure
from helpers.training import models
from helpers.training.precision import MixedPrecision

UNIT = "s a step"
CASES = (("resnet18", 32, 64), ("resnet50", 64, 32))  # model, pixels, batch
VARIANTS = {
    "fp32": ("fp32", False),
    "fp32, channels last": ("fp32", True),
    "bf16": ("bf16-mixed", False),
    "bf16, channels last": ("bf16-mixed", True),
}
WARM, STEPS = 2, 7


def stepper(model, pixels, batch, level, channels_last, where):
    """A function that makes one training step."""
    torch.manual_seed(0)
    net = models.build(model, 10).to(where)
    images, labels = torch.randn(batch, 3, pixels, pixels, device=where), torch.randint(0, 10, (batch,), device=where)
    if channels_last:
        net, images = net.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
    mixed = MixedPrecision(level, net, where)
    optimizer = torch.optim.SGD(mixed.parameters, lr=0.01, momentum=0.9)

    def step():
        mixed.zero_grad()
        mixed.backward(F.cross_entropy(mixed.forward(net, images), labels))
        mixed.step(optimizer)
        device.synchronize(where)

    return step


def run():
    torch.set_num_threads(1)
    where = device.of_rank(0)
    rows, ratios = {}, {}
    for model, pixels, batch in CASES:
        case = f"{model}, {pixels}×{pixels}, batch {batch}"
        steps = {name: stepper(model, pixels, batch, *variant, where) for name, variant in VARIANTS.items()}
        samples = {name: [] for name in VARIANTS}
        for k in range(WARM + STEPS):
            for name, step in steps.items():
                began = time.perf_counter()
                step()
                if k >= WARM:
                    samples[name].append(time.perf_counter() - began)
        rows |= {f"{case}: {name}": measure.summary(spent) for name, spent in samples.items()}
        plain = rows[f"{case}: fp32"]["median"]
        ratios |= {f"{case}: {name}": plain / rows[f"{case}: {name}"]["median"] for name in list(VARIANTS)[1:]}
    return rows, ratios

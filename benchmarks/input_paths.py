"""Images a second through the two input paths, same CIFAR-shaped set, same augmentation.

One core feeds one device: the fast path works on whole batches in memory, the worker path is a
DataLoader with two worker processes and torchvision's transforms on single PIL images. Each takes
whole epochs in turn, the drawing of their order and crops included; the workers live on.
"""

import time

import torch

from helpers import measure
from helpers.data import loaders as data
from helpers.data import sets

from . import turns

UNIT = "images/s"
BATCH, WORKERS, ROUNDS = 128, 2, 5
FAST, SLOW = "fast path", f"worker path, {WORKERS} workers"
RATIO = "fast path / worker path"
TARGETS = {RATIO: (">=", 15)}


def rate(loader, epoch):
    """Images a second over one epoch."""
    loader.set_epoch(epoch)
    count, began = 0, time.perf_counter()
    for images, _ in loader:
        count += len(images)
    return count / (time.perf_counter() - began)


def in_rounds(images, rounds, batch=BATCH):
    """{path: images a second, round by round}; a round before the first starts the workers."""
    paths = {FAST: "fast", SLOW: "workers"}
    loaders = {
        name: data.make_loader(images, path=path, global_batch=batch, num_workers=WORKERS)
        for name, path in paths.items()
    }
    found = {name: [] for name in loaders}
    for epoch in range(rounds + 1):
        for name in turns.order(loaders, epoch):
            found[name].append(rate(loaders[name], epoch))
    return {name: rates[1:] for name, rates in found.items()}


def run():
    torch.set_num_threads(1)
    sets.ensure("mock")
    found = in_rounds(sets.load("mock", "train"), ROUNDS)
    rows = {name: measure.summary(rates) for name, rates in found.items()}
    return rows, {RATIO: turns.ratio(found[FAST], found[SLOW])}


def reasons(rows, ratios):
    if ratios[RATIO]["median"] >= TARGETS[RATIO][1]:
        return {}
    image = 1e6 / rows[FAST]["median"]
    return {
        RATIO: f"the fast path takes {image:.1f} µs an image on one thread, all of it memory to be moved; two workers "
        f"make {rows[SLOW]['median']:,.0f} images/s here, so {1e6 / rows[SLOW]['median'] / TARGETS[RATIO][1]:.1f} µs "
        "would be wanted"
    }


def notes(rows, ratios):
    return [
        f"50,000 images of 32×32, batches of {BATCH}; the fast path computes on one thread, beside it nothing runs. "
        "Both give equal numbers (tests/data/test_data.py)."
    ]

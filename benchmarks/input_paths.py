"""Images a second through the two input paths, same CIFAR-shaped set, same augmentation.

One core feeds one device: the fast path works on whole batches in memory, the worker path is a
DataLoader with two worker processes and torchvision's transforms on single images.
"""

import time

import torch

from helpers import data, datasets, measure

UNIT = "images/s"
IMAGES, BATCH, ROUNDS = 10_000, 128, 5


def rate(loader, batches, epoch):
    """Images a second over `batches` batches after the first, which starts the workers."""
    loader.set_epoch(epoch)
    iterator = iter(loader)
    next(iterator)
    start = time.perf_counter()
    for _ in range(batches):
        next(iterator)
    return batches * BATCH / (time.perf_counter() - start)


def run():
    torch.set_num_threads(1)
    datasets.ensure("mock")
    images = datasets.load("mock", "train")
    loaders = {path: data.make_loader(images, path=path, global_batch=BATCH) for path in ("fast", "workers")}
    rows = {path: [] for path in loaders}
    for epoch in range(ROUNDS):
        for path, loader in loaders.items():
            rows[path].append(rate(loader, IMAGES // BATCH, epoch))
    rows = {f"{path} path": measure.summary(samples) for path, samples in rows.items()}
    return rows, {"fast / workers": rows["fast path"]["median"] / rows["workers path"]["median"]}

"""From a set in memory to the batches of one rank."""

import torch
from torch.utils.data import IterableDataset

from .batches import GlobalBatchSampler, augmentation_plan
from .datasets import ImageSet
from .loaders import FastLoader, Loader, WorkerLoader, collate, normalise, per_channel

__all__ = ["FastLoader", "GlobalBatchSampler", "WorkerLoader", "augmentation_plan", "eval_batches",
           "make_loader"]


def make_loader(data, *, path="fast", device="cpu", global_batch, rank=0, world_size=1, seed=0,
                augment=True, num_workers=2, start_batch=0) -> Loader:
    """The training loader of one rank; see FastLoader and WorkerLoader.

    `data` is an ImageSet or any map-style Dataset of (input, label) pairs; such a Dataset does
    its own transforms and is not augmented here. Raises ValueError or TypeError for anything
    that cannot work.
    """
    check_data(data)
    if path not in (FastLoader.path, WorkerLoader.path):
        raise ValueError(f"path must be 'fast' or 'workers'; got {path!r}")
    if global_batch < world_size:
        raise ValueError(f"a global batch of {global_batch} leaves some of {world_size} ranks "
                         "without a sample: choose a larger global_batch")
    sampler = GlobalBatchSampler(len(data), global_batch, rank, world_size, seed)
    if path == "fast":
        return FastLoader(data, sampler, device, augment, start_batch)
    return WorkerLoader(data, sampler, device, augment, start_batch, num_workers)


def eval_batches(data, *, device="cpu", batch=256, rank=0, world_size=1):
    """This rank's share of a test set as (images, labels) batches: indices rank::world_size.

    Every sample comes exactly once over all ranks: nothing is padded, repeated or augmented.
    """
    check_data(data)
    if batch < 1 or not 0 <= rank < world_size:
        raise ValueError(f"batch must be 1 or more and rank from 0 to world_size - 1; got batch "
                         f"{batch}, rank {rank} of {world_size}")
    return share(data, torch.device(device), batch, range(rank, len(data), world_size))


def share(data, device, batch: int, indices: range):
    """The batches of eval_batches."""
    if isinstance(data, ImageSet):
        mean, std = per_channel(data.mean, device), per_channel(data.std, device)
    for k in range(0, len(indices), batch):
        chosen = indices[k:k + batch]
        if isinstance(data, ImageSet):
            part = slice(chosen.start, chosen.stop, chosen.step)
            yield normalise(data.images[part].to(device), mean, std), data.labels[part].to(device)
        else:
            yield tuple(part.to(device) for part in collate([data[i] for i in chosen]))


def check_data(data) -> None:
    """TypeError unless `data` has a length and can be indexed."""
    indexable = hasattr(data, "__getitem__") and not isinstance(data, IterableDataset)
    if not isinstance(data, ImageSet) and not (indexable and hasattr(data, "__len__")):
        raise TypeError(f"a data set must have __len__ and __getitem__ (map style); "
                        f"{type(data).__name__} has not")

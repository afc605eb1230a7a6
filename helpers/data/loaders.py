"""Two ways to turn an image set into batches, with equal results.

FastLoader keeps the whole set on the device and works on whole batches; WorkerLoader is the usual DataLoader with
worker processes and torchvision's transforms, one image at a time.
"""

import sys
from itertools import chain, islice

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, default_collate

from .batches import PAD, GlobalBatchSampler, augmentation_plan
from .sets import ImageSet, TokenSet


def normaliser(data: ImageSet, device):
    """A function from uint8 [b, 3, H, W] to float32, with the very arithmetic of to_tensor and normalize."""
    mean, std = (torch.tensor(each, dtype=torch.float32, device=device).view(3, 1, 1) for each in (data.mean, data.std))
    return lambda images: images.float().div_(255).sub_(mean).div_(std)


def crop_and_flip(images: torch.Tensor, plan: torch.Tensor) -> torch.Tensor:
    """Pad uint8 [b, 3, H, W] with zeros, crop and flip, with int64 [b, 3] as in augmentation_plan.

    Every cropped row is W neighbouring bytes of the padded batch, so one index_select copies all of them.
    """
    b, channels, height, width = images.shape
    count = lambda n: torch.arange(n, device=images.device)  # noqa: E731
    dy, dx, flip = plan.unbind(1)
    # Flipped before the crop instead of after it, so the crop's corner is mirrored.
    images = torch.cat([images, images.flip(3)]).index_select(0, flip * b + count(b))
    dx = dx + flip * (2 * PAD - 2 * dx)
    padded = F.pad(images, [PAD] * 4)
    rows, columns = padded.shape[2:]
    start = (count(b * channels) * (rows * columns)).view(b, channels, 1) + count(height) * columns
    start = start + (dy * columns + dx).view(b, 1, 1)
    runs = padded.as_strided((padded.numel() - width + 1, width), (1, 1))
    return runs.index_select(0, start.view(-1)).view(b, channels, height, width)


def collate(samples: list) -> list[torch.Tensor]:
    """Stack (input, label) samples; TypeError that says what is expected when they do not fit."""
    try:
        inputs, labels = default_collate(samples)
        return [inputs.contiguous(), labels.contiguous()]
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise TypeError(
            "the samples of the data set cannot be put in one batch: each must be a pair (input, label) of tensors, "
            "arrays or numbers, all inputs of one shape (for pictures, a transform such as ToTensor does that). "
            f"{type(error).__name__}: {error}"
        ) from error


class Loader:
    """What both loaders share. Iterating gives (inputs, labels) on `device`.

    `start_batch = k` makes the next iteration leave out k batches (to resume within an epoch); then it is 0 again.
    """

    def __init__(self, data, sampler: GlobalBatchSampler, device, augment: bool):
        self.data, self.sampler, self.device, self.start_batch = data, sampler, torch.device(device), 0
        self.is_image_set = isinstance(data, ImageSet)
        self.augment = augment and self.is_image_set

    def set_epoch(self, epoch: int) -> None:
        """Choose the order and the augmentation of the next iteration."""
        self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        """Number of batches in a whole epoch."""
        return len(self.sampler)

    def __iter__(self):
        start, self.start_batch = self.start_batch, 0
        if not 0 <= start <= len(self):
            raise ValueError(f"start_batch must be from 0 to {len(self)}; got {start}")
        plan = augmentation_plan(self.sampler, self.data.flip) if self.augment else None
        return self.batches(list(islice(self.sampler, start, None)), plan)


class FastLoader(Loader):
    """The whole set as one tensor on the device; augmentation and normalisation on batches."""

    path = "fast"

    def __init__(self, data, sampler, device, augment):
        super().__init__(data, sampler, device, augment)
        if self.is_image_set:
            pair, self.normalise = (data.images, data.labels), normaliser(data, device)
        else:
            pair = data[:] if isinstance(data, TokenSet) else collate([data[i] for i in range(len(data))])
        self.inputs, self.labels = (part.to(self.device) for part in pair)

    def batches(self, parts, plan):
        sizes = [len(part) for part in parts]
        order = torch.tensor(list(chain.from_iterable(parts)), dtype=torch.int64)
        # Order and plan go to the device once an epoch: a small copy a batch would make it wait.
        plans = [None] * len(parts) if plan is None else plan[order].to(self.device).split(sizes)
        for indices, plan in zip(order.to(self.device).split(sizes), plans, strict=True):
            inputs = self.inputs.index_select(0, indices)
            if plan is not None:
                inputs = crop_and_flip(inputs, plan)
            if self.is_image_set:
                inputs = self.normalise(inputs)
            yield inputs, self.labels.index_select(0, indices)


class Pictures:
    """An ImageSet as the usual CIFAR recipe reads it, indexed by (index, dy, dx, flip): one PIL image a time."""

    def __init__(self, data: ImageSet):
        self.data = data

    def __getitem__(self, key):
        from torchvision.transforms import functional as TF

        index, dy, dx, flip = key
        image = TF.to_pil_image(self.data.images[index])
        image = TF.crop(TF.pad(image, PAD), dy, dx, image.height, image.width)
        image = TF.to_tensor(TF.hflip(image) if flip else image)
        return TF.normalize(image, self.data.mean, self.data.std), self.data.labels[index]


class WorkerLoader(Loader):
    """A DataLoader whose workers, kept through all epochs, prepare one image after another."""

    path = "workers"

    def __init__(self, data, sampler, device, augment, num_workers):
        super().__init__(data, sampler, device, augment)
        if self.is_image_set:
            import torchvision.transforms  # noqa: F401  once here, not once in every worker

        self.keys = []  # of each batch of this epoch
        self.loader = DataLoader(
            Pictures(data) if self.is_image_set else data,
            batch_sampler=self.keys,
            collate_fn=collate,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            pin_memory=self.device.type == "cuda",
            # Python 3.14's own choice imports torch again in each worker, and leaves two processes behind.
            multiprocessing_context="fork" if num_workers and sys.platform == "linux" else None,
            # For the workers' seeds: the model's random numbers do not depend on the way the data are loaded.
            generator=torch.Generator().manual_seed(sampler.seed + sampler.rank),
        )

    def batches(self, parts, plan):
        if self.is_image_set:
            if plan is None:
                plan = torch.tensor([[PAD, PAD, 0]]).expand(self.sampler.n, 3)  # the middle: no change
            parts = [[(i, *step) for i, step in zip(part, plan[part].tolist(), strict=True)] for part in parts]
        self.keys[:] = parts
        for pair in self.loader:
            yield tuple(part.to(self.device, non_blocking=True) for part in pair)


def make_loader(
    data, *, path="fast", device="cpu", global_batch, rank=0, world_size=1, seed=0, augment=True, num_workers=2
) -> Loader:
    """The training loader of one rank, for an ImageSet or any map-style Dataset of (input, label) pairs.

    Such a Dataset does its own transforms and is not augmented here. Raises ValueError or TypeError.
    """
    if path not in (FastLoader.path, WorkerLoader.path):
        raise ValueError(f"path must be 'fast' or 'workers'; got {path!r}")
    if global_batch < world_size:
        raise ValueError(
            f"a global_batch of {global_batch} leaves some of {world_size} ranks without a sample: choose a larger one"
        )
    sampler = GlobalBatchSampler(len(data), global_batch, rank, world_size, seed)
    if path == "fast":
        return FastLoader(data, sampler, device, augment)
    return WorkerLoader(data, sampler, device, augment, num_workers)


def eval_batches(data, *, device="cpu", batch=256, rank=0, world_size=1):
    """This rank's share of a test set as (inputs, labels) batches: indices rank::world_size.

    Every sample comes exactly once over all ranks: nothing is padded, repeated or augmented.
    """
    if isinstance(data, ImageSet):
        normalise = normaliser(data, device)
        read = lambda part: (normalise(data.images[part].to(device)), data.labels[part].to(device))  # noqa: E731
    else:
        read = lambda part: tuple(each.to(device) for each in collate([data[i] for i in range(len(data))[part]]))  # noqa: E731
    starts = range(rank, len(data), batch * world_size)
    return (read(slice(start, start + batch * world_size, world_size)) for start in starts)

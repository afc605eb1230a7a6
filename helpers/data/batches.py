"""Which samples a rank gets in which batch, and how each is cropped and flipped.

A batch is defined by seed, epoch and rank: order, crops and flips are drawn in advance. So every rank agrees on them
without messages, and the loaders of helpers.data give the same numbers.
"""

from collections.abc import Iterator

import numpy as np
import torch

PAD = 4  # pixels a side, as in the usual CIFAR recipe (arXiv:1512.03385, section 4.2)


class GlobalBatchSampler:
    """This rank's part of every global batch, as lists of sample indices.

    Global batch k is permutation[k*G:(k+1)*G], an incomplete one is left out; rank r gets the r-th of world_size
    contiguous pieces, equal to within one sample, longer ones first. All ranks together see what one device sees.
    """

    def __init__(self, n, global_batch, rank=0, world_size=1, seed=0):
        if not 1 <= global_batch <= n:
            raise ValueError(f"global_batch must be from 1 to the set's {n} samples; got {global_batch}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be from 0 to world_size - 1; got {rank} of {world_size}")
        self.n, self.global_batch, self.rank, self.world_size = n, global_batch, rank, world_size
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the permutation of the next iteration."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Number of batches, the same on every rank."""
        return self.n // self.global_batch

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.default_rng((self.seed, self.epoch, 0)).permutation(self.n)
        for k in range(len(self)):
            batch = order[k * self.global_batch : (k + 1) * self.global_batch]
            yield np.array_split(batch, self.world_size)[self.rank].tolist()


def augmentation_plan(sampler: GlobalBatchSampler, flip: bool) -> torch.Tensor:
    """The crop and flip of every sample in the sampler's epoch: int64 [n, 3], columns dy, dx, flip.

    dy and dx (0 .. 2*PAD) are the crop's corner in the padded image; flip is 0 or 1 and is applied after the crop.
    """
    n, rng = sampler.n, np.random.default_rng((sampler.seed, sampler.epoch, 1))
    plan = np.zeros((n, 3), np.int64)
    plan[:, :2] = rng.integers(0, 2 * PAD + 1, (n, 2))
    if flip:
        plan[:, 2] = rng.integers(0, 2, n)
    return torch.from_numpy(plan)

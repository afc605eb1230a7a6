"""`ElasticSampler`: shares out what is left of an epoch, also when the number of ranks changes within it."""

import itertools
import random

from torch.utils.data import Sampler

from ..mpi_ops import rank, size


class ElasticSampler(Sampler):
    """Indices of this rank, without those that were processed before the last `reset()` (a commit restored, say).

    Put it into the `TorchState`, call `record_batch` after every batch and `set_epoch` at the END of an epoch (at
    its start, a training that was interrupted would begin the epoch anew). The last indices are repeated where the
    number does not divide by the ranks. As in the API reference of horovod.torch.elastic.

    Args:
        dataset: anything with a length, which must not change.
        shuffle: whether to shuffle, by `seed` and the number of the epoch; both must be the same on all ranks.
    """

    def __init__(self, dataset, shuffle=True, seed=0):
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch, self.processed_num = 0, 0
        self.reset()

    def set_epoch(self, epoch):
        """Begin epoch number `epoch`: nothing is processed, and the order is another."""
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx, batch_size):
        """Note that every rank has processed its batch number `batch_idx`, of `batch_size` indices."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self):
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict):
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self):
        """Share out what is left among the ranks there are now."""
        self.num_replicas, self.rank = size(), rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self):
        # Over and over, since there may be fewer indices left than ranks.
        padded = itertools.islice(itertools.cycle(self.remaining_indices), self.total_size)
        return itertools.islice(padded, self.rank, None, self.num_replicas)

    def __len__(self):
        return self.num_samples

"""nn.SyncBatchNorm on the cards: PyTorch's own operators for it are written for CUDA."""

import functools

import torch.distributed as dist
from torch.nn import SyncBatchNorm

from helpers.training.sync_batch_norm import over_all_ranks


def register() -> None:
    """Let SyncBatchNorm compute as the kit's own does, over the default group, where its input is on a card."""
    forward = SyncBatchNorm.forward

    @functools.wraps(forward)
    def on_cards(self, batch):
        use_batch = self.training or self.running_mean is None
        if batch.device.type != "npu" or not use_batch or not dist.is_initialized():
            return forward(self, batch)
        return over_all_ranks(self, batch)

    SyncBatchNorm.forward = on_cards

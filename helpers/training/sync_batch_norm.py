"""BatchNorm over the global batch: PyTorch's own on GPUs, the same arithmetic by hand on CPUs.

`torch.nn.SyncBatchNorm` raises on CPU tensors. Ours adds up sums, squares and counts over the ranks with an all-reduce
that autograd can differentiate (Ioffe and Szegedy, "Batch normalization", arXiv:1502.03167, over the batch of all).
"""

import torch
import torch.distributed as dist
from torch import nn


def convert(module, device):
    """`module` with every BatchNorm layer replaced by one that sees the global batch."""
    if device.type != "cpu":
        return nn.SyncBatchNorm.convert_sync_batchnorm(module)
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return CPUSyncBatchNorm.of(module)
    for name, child in module.named_children():
        setattr(module, name, convert(child, device))
    return module


class SumOverRanks(torch.autograd.Function):
    """An all-reduce with a backward pass: what depends on a sum over ranks sends its gradient to all of them."""

    @staticmethod
    def forward(ctx, values):
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return SumOverRanks.forward(ctx, gradient)


class CPUSyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Normalises [N, C, …] by the statistics of all ranks' N; ranks may have unequal N."""

    @classmethod
    def of(cls, norm):
        """A synchronised layer with the parameters and buffers of `norm`."""
        made = cls(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        made._parameters, made._buffers = norm._parameters, norm._buffers
        return made.train(norm.training)

    def _check_input_dim(self, batch):
        if batch.dim() < 2:
            raise ValueError(f"expected [N, C, …], got {batch.dim()} dimension(s)")

    def forward(self, batch):
        self._check_input_dim(batch)
        use_batch = self.training or self.running_mean is None
        if not use_batch or not dist.is_initialized() or dist.get_world_size() == 1:
            return super().forward(batch)
        return over_all_ranks(self, batch)


def over_all_ranks(norm, batch):
    """`batch` [N, C, …] normalised by the statistics of all ranks, with the weights and statistics of layer `norm`."""
    given, dims = batch.dtype, [0, *range(2, batch.dim())]
    batch = batch.to(torch.promote_types(given, torch.float32))  # sums need more digits than a half has
    count = batch.new_tensor([batch.numel() / batch.size(1)])
    # One message for all three, as few and large messages are cheaper than many small ones.
    sums = SumOverRanks.apply(torch.cat([batch.sum(dims), batch.square().sum(dims), count]))
    total, squares, count = sums.split([norm.num_features, norm.num_features, 1])
    mean = total / count
    variance = (squares / count - mean.square()).clamp_min(0)
    if norm.training and norm.track_running_stats:
        norm.num_batches_tracked += 1
        share = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
        unbiased = variance * count / (count - 1).clamp_min(1)  # as BatchNorm keeps it
        for kept, new in ((norm.running_mean, mean), (norm.running_var, unbiased)):
            kept.lerp_(new.detach().to(kept.dtype), share)
    shape = [1, -1] + [1] * (batch.dim() - 2)
    scale = torch.rsqrt(variance + norm.eps) * (norm.weight if norm.affine else 1)
    shift = (norm.bias if norm.affine else 0) - mean * scale
    return (batch * scale.view(shape) + shift.view(shape)).to(given)

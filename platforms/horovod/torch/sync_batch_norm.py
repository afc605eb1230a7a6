"""BatchNorm over the batches of all ranks, on CPUs and GPUs (`hvd.SyncBatchNorm`).

Horovod's layer takes CUDA tensors only. The arithmetic is that of Ioffe and Szegedy, "Batch normalization"
(arXiv:1502.03167), with the batch of all ranks as the batch; variances are merged as by Chan, Golub and LeVeque (1979),
which does not cancel digits when the mean is large.
"""

import torch
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from ..core import Sum, size
from ..signature import SET, signed
from .mpi_ops import FORMS


class SyncBatchNorm(_BatchNorm):
    """Normalises [N, C, …] by the statistics of all ranks' N; ranks may have unequal N, also none.

    Its parameters' gradients are those of the rank's own batch: `DistributedOptimizer` reduces them like any other.
    `process_set`: the ranks whose batches belong together; any other rank normalises its own. ValueError where it
    has not `num_features` channels, or a training batch of all ranks together has only one value a channel.
    """

    @signed(f"self, num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True, {SET}")
    def __init__(self, process_set, **options):
        super().__init__(**options)
        self.process_set = process_set

    def _check_input_dim(self, input):
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")
        if input.size(1) != self.num_features:
            raise ValueError(f"expected {self.num_features} channels, got an input of shape {list(input.shape)}")

    def forward(self, input):
        self._check_input_dim(input)
        of_batch = self.training or self.running_mean is None
        if not of_batch or size() == 1 or not self.process_set.included() or self.process_set.size() == 1:
            return super().forward(input)
        wide = input.to(torch.promote_types(input.dtype, torch.float32))  # a half has too few digits for sums
        count, mean, variance = _statistics(wide.detach(), self.process_set)
        if count == 1:
            raise ValueError(
                f"Expected more than 1 value per channel when training, got input size {list(input.shape)} on this "
                "rank and none on the others"
            )
        if self.training and self.track_running_stats and count:
            self._keep(mean, variance, count)
        scale = torch.rsqrt(variance + self.eps)
        out = _Normalise.apply(wide, self.weight, self.bias, mean, scale, count, self.process_set)
        return out.to(input.dtype)

    def _keep(self, mean, variance, count):
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (count / (count - 1))  # as BatchNorm keeps it
        for kept, new in ((self.running_mean, mean), (self.running_var, unbiased)):
            kept.lerp_(new.to(kept.dtype), share)


def _statistics(batch, process_set):
    """Values a channel, mean [C] and variance [C] over the batches [N, C, …] of all ranks; one message."""
    dims, channels = _all_but_channels(batch), batch.size(1)
    own = batch.numel() // channels
    mean = batch.sum(dims) / max(own, 1)
    squares = (batch - _per_channel(mean, batch)).square().sum(dims)
    message = torch.cat([mean, squares, mean.new_tensor([own])]).unsqueeze(0)
    everybody = FORMS["allgather"](message, name="sync_batch_norm.statistics", process_set=process_set)
    means, squares, counts = everybody.split([channels, channels, 1], dim=1)
    count = counts.sum()
    total = count.clamp(min=1)
    mean = (means * counts).sum(0) / total
    variance = (squares + counts * (means - mean).square()).sum(0) / total
    return int(count), mean, variance


class _Normalise(torch.autograd.Function):
    """(batch - mean) * scale * weight + bias, where mean and scale depend on the batches of all ranks."""

    @staticmethod
    def forward(ctx, batch, weight, bias, mean, scale, count, process_set):
        ctx.save_for_backward(batch, weight, mean, scale)
        ctx.count, ctx.process_set = count, process_set
        out = (batch - _per_channel(mean, batch)) * _per_channel(scale, batch)
        if weight is not None:
            out = out * _per_channel(weight, batch) + _per_channel(bias, batch)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        batch, weight, mean, scale = ctx.saved_tensors
        dims = _all_but_channels(batch)
        normal = (batch - _per_channel(mean, batch)) * _per_channel(scale, batch)
        of_bias, of_weight = gradient.sum(dims), (gradient * normal).sum(dims)
        of_batch = None
        if ctx.needs_input_grad[0]:
            # The statistics of every rank depend on this batch: what all ranks say of them counts.
            sums = torch.cat([of_bias, of_weight])
            sums = FORMS["allreduce"](sums, name="sync_batch_norm.gradients", op=Sum, process_set=ctx.process_set)
            shift, slope = (sums / max(ctx.count, 1)).chunk(2)
            factor = scale if weight is None else scale * weight
            of_batch = gradient - _per_channel(shift, batch) - normal * _per_channel(slope, batch)
            of_batch = of_batch * _per_channel(factor, batch)
        if weight is None:
            of_weight = of_bias = None
        else:
            of_weight, of_bias = of_weight.to(weight.dtype), of_bias.to(weight.dtype)
        return of_batch, of_weight, of_bias, None, None, None, None


def _all_but_channels(batch):
    return [0] + list(range(2, batch.dim()))


def _per_channel(values, batch):
    return values.view([1, -1] + [1] * (batch.dim() - 2))

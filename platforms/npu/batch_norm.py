"""The five operators of nn.SyncBatchNorm, which PyTorch has for CUDA only (aten/src/ATen/native/cuda/Normalization.cu).

x and its gradient are (N, C, …); statistics are (C,) in fp32, `counts` are values a channel, by rank.
"""

import torch


def batch_norm_stats(x, eps):
    """Mean and 1 / standard deviation of every channel on this card."""
    x, dims = x.float(), _all_but_channels(x)
    return x.mean(dims), torch.rsqrt(x.var(dims, unbiased=False) + eps)


def batch_norm_gather_stats_with_counts(x, mean, invstd, running_mean, running_var, momentum, eps, counts):
    """The same over all ranks, of (ranks, C); running statistics move towards them."""
    counts = counts.to(mean.dtype).unsqueeze(1)
    total = counts.sum()
    whole = (mean * counts).sum(0) / total
    squares = ((invstd.pow(-2) - eps + (mean - whole).pow(2)) * counts).sum(0)
    if running_mean is not None:
        running_mean.lerp_(whole.to(running_mean.dtype), momentum)
    if running_var is not None:
        running_var.lerp_((squares / (total - 1)).to(running_var.dtype), momentum)
    return whole, torch.rsqrt(squares / total + eps)


def batch_norm_elemt(x, weight, bias, mean, invstd, eps):
    """x, normalized, times `weight` plus `bias`."""
    y = (x.float() - _like(x, mean)) * _like(x, invstd)
    y = y if weight is None else y * _like(x, weight.float())
    return (y if bias is None else y + _like(x, bias.float())).to(x.dtype)


def batch_norm_backward_reduce(dy, x, mean, invstd, weight, for_x, for_weight, for_bias):
    """Sums over this card of dy and of dy (x - mean), and the gradients of weight and bias."""
    dims, given = _all_but_channels(x), dy.float()
    sum_dy, sum_dy_xmu = given.sum(dims), (given * (x.float() - _like(x, mean))).sum(dims)
    kind = mean.dtype if weight is None else weight.dtype
    return sum_dy, sum_dy_xmu, (sum_dy_xmu * invstd).to(kind), sum_dy.to(kind)


def batch_norm_backward_elemt(dy, x, mean, invstd, weight, sum_dy, sum_dy_xmu, counts):
    """The gradient of x, from sums over all ranks."""
    total = counts.sum()
    scale = invstd if weight is None else invstd * weight.float()
    centred = (x.float() - _like(x, mean)) * _like(x, invstd.pow(2) * sum_dy_xmu / total)
    return ((dy.float() - _like(x, sum_dy / total) - centred) * _like(x, scale)).to(x.dtype)


def _all_but_channels(x):
    return [dim for dim in range(x.dim()) if dim != 1]


def _like(x, values):
    """(C,) as (1, C, 1, …) of the dimensions of x."""
    return values.view(1, -1, *(1,) * (x.dim() - 2))


def register():
    """Make them the operators of the device; they last as long as what is returned."""
    library = torch.library.Library("aten", "IMPL")
    for operator in (
        batch_norm_stats,
        batch_norm_gather_stats_with_counts,
        batch_norm_elemt,
        batch_norm_backward_reduce,
        batch_norm_backward_elemt,
    ):
        library.impl(operator.__name__, operator, "PrivateUse1")
    return library

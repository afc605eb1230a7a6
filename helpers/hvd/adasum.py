"""Adasum: add gradients as far as they agree, average them as far as they are alike.

Maleki et al., "Scaling Distributed Training with Adaptive Summation" (arXiv:2006.02924): two gradients
a and b become (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b, and 2^k gradients do so pairwise in a tree.
"""

import torch


def combine(tensors):
    """One tensor of 2^k tensors of one shape; the scalar products are taken in float64."""
    while len(tensors) > 1:
        tensors = [_pair(a, b) for a, b in zip(tensors[::2], tensors[1::2])]
    return tensors[0]


def _pair(a, b):
    wide_a, wide_b = a.to(torch.float64), b.to(torch.float64)
    product, square_a, square_b = (wide_a * wide_b).sum(), (wide_a * wide_a).sum(), (wide_b * wide_b).sum()
    keep_a = 1 - product / (2 * square_a) if square_a > 0 else 1.0
    keep_b = 1 - product / (2 * square_b) if square_b > 0 else 1.0
    return (keep_a * wide_a + keep_b * wide_b).to(a.dtype)

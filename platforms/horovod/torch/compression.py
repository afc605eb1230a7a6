"""Gradients in half the bytes between ranks (`compression=` of `allreduce` and `DistributedOptimizer`)."""

import torch

from ..compression import choices

# Complex numbers are not cast: their imaginary part would be lost.
Compression = choices(torch.is_floating_point, torch.Tensor.to, fp16=torch.float16, bf16=torch.bfloat16)

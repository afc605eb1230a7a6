"""Gradients in half the bytes between ranks (`compression=` of `allreduce` and `DistributedOptimizer`).

Names as in Horovod's "Compression" (API reference of horovod.torch).
"""

import torch

from ..compression import CastCompressor, NoneCompressor


class _Cast(CastCompressor):
    casts = staticmethod(torch.is_floating_point)  # not complex numbers, whose imaginary part would be lost
    cast = staticmethod(torch.Tensor.to)


class FP16Compressor(_Cast):
    """Sends floating-point tensors as float16: 11 bits of mantissa, nothing above 65,504."""

    dtype = torch.float16


class BF16Compressor(_Cast):
    """Sends floating-point tensors as bfloat16: 8 bits of mantissa, the range of float32."""

    dtype = torch.bfloat16


class Compression:
    """The choices."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor

"""Gradients in half the bytes on the way between ranks (`compression=` of `allreduce` and `DistributedOptimizer`).

Names as in Horovod's "Compression" (API reference of horovod.torch).
"""

import torch

from ..compressor import Compressor, NoneCompressor


class FP16Compressor(Compressor):
    """Sends floating-point tensors as float16: 11 bits of mantissa, nothing above 65,504."""

    @staticmethod
    def compress(tensor):
        return _cast(tensor, torch.float16)

    @staticmethod
    def decompress(tensor, ctx):
        return tensor.to(ctx)


class BF16Compressor(Compressor):
    """Sends floating-point tensors as bfloat16: 8 bits of mantissa, the range of float32."""

    @staticmethod
    def compress(tensor):
        return _cast(tensor, torch.bfloat16)

    @staticmethod
    def decompress(tensor, ctx):
        return tensor.to(ctx)


def _cast(tensor, dtype):
    # Integers and complex numbers pass as they are: a half would lose more than digits.
    return (tensor.to(dtype) if tensor.is_floating_point() else tensor), tensor.dtype


class Compression:
    """The choices."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor

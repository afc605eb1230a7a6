"""Gradients in half the bytes between ranks (`compression=` of `allreduce`, tape and optimizer).

Names as in Horovod's "Compression" (https://horovod.readthedocs.io/en/stable/api.html).
"""

import tensorflow as tf

from ..compression import CastCompressor, NoneCompressor


class _Cast(CastCompressor):
    cast = staticmethod(tf.cast)

    @classmethod
    def casts(cls, tensor):
        return tensor.dtype.is_floating and tensor.dtype.size > cls.dtype.size


class FP16Compressor(_Cast):
    """Sends floating-point tensors as float16: 3 significant digits, up to 65,504."""

    dtype = tf.float16


class BF16Compressor(_Cast):
    """Sends floating-point tensors as bfloat16: 2 significant digits, the range of float32."""

    dtype = tf.bfloat16


class Compression:
    """The choices."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor

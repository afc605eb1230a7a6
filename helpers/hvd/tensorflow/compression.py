"""Smaller numbers on the wire: gradients are cast before they are reduced and cast back afterwards.

The same interface as Horovod's `Compression` (https://horovod.readthedocs.io/en/stable/api.html): a class with
`compress(tensor) -> (tensor, context)` and `decompress(tensor, context) -> tensor` may be given in place of these.
"""

import tensorflow as tf

from ..compressor import Compressor, NoneCompressor


class _Cast(Compressor):
    dtype = None

    @classmethod
    def compress(cls, tensor):
        """(tensor in `dtype`, its own dtype); tensors of integers stay as they are."""
        if not tensor.dtype.is_floating or tensor.dtype.size <= cls.dtype.size:
            return tensor, None
        return tf.cast(tensor, cls.dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor, ctx):
        return tensor if ctx is None else tf.cast(tensor, ctx)


class FP16Compressor(_Cast):
    """Send floating-point numbers with 16 bits: 3 significant digits, up to 65,504."""

    dtype = tf.float16


class BF16Compressor(_Cast):
    """Send floating-point numbers as bfloat16: 2 significant digits, the range of float32."""

    dtype = tf.bfloat16


class Compression:
    """What `compression=` takes."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor

"""Gradients in half the bytes between ranks (`compression=` of `allreduce`, tape and optimizer).

Names as in Horovod's "Compression" (https://horovod.readthedocs.io/en/stable/api.html). fp16 has 3 significant digits,
up to 65,504; bf16 has 2, and the range of float32.
"""

import tensorflow as tf

from ..compression import choices

Compression = choices(
    lambda tensor: tensor.dtype.is_floating and tensor.dtype.size > 2, tf.cast, fp16=tf.float16, bf16=tf.bfloat16
)

"""Batch normalization over the batches of all ranks."""

import keras
import tensorflow as tf

from ..core import Sum, global_process_set
from .collectives import allreduce


@keras.saving.register_keras_serializable("platforms.horovod")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """Keras's BatchNormalization whose mean and variance are those of the global batch.

    As Horovod's layer of that name. Mean first and deviations from it after that, two meetings of the ranks for
    each layer: E[x²] - E[x]² in one would lose digits where the mean is large. In inference nothing is exchanged.
    """

    def __init__(self, *args, process_set=global_process_set, **kwargs):
        super().__init__(*args, **kwargs)
        self._process_set = process_set

    def _moments(self, inputs, mask):
        if self._process_set.size() == 1:
            return super()._moments(inputs, mask)
        inputs = tf.cast(inputs, tf.float32) if inputs.dtype.size < 4 else inputs
        weights = tf.ones_like(inputs[..., :1]) if mask is None else tf.cast(mask, inputs.dtype)[..., None]
        count = self._total(tf.reduce_sum(tf.broadcast_to(weights, tf.shape(inputs)), self._reduction_axes))
        mean = self._total(tf.reduce_sum(inputs * weights, self._reduction_axes)) / count
        shape = [1 if axis in self._reduction_axes else -1 for axis in range(inputs.shape.rank)]
        deviations = tf.square(inputs - tf.reshape(mean, shape)) * weights
        return mean, self._total(tf.reduce_sum(deviations, self._reduction_axes)) / count

    def _total(self, tensor):
        return allreduce(tensor, op=Sum, process_set=self._process_set)

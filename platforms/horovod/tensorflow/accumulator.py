"""Gradients of several backward passes, summed up and then reduced once."""

import tensorflow as tf

from .collectives import divided
from .gradients import ref


class Accumulator:
    """Sums gradients of several backward passes, and reduces the sums once.

    Its variables are not among the optimizer's, so that a model saved with it loads without it.
    """

    def __init__(self, reducer, passes, average):
        self.reducer, self.passes, self.average = reducer, passes, average
        self.count, self.sums = None, {}

    def step(self, gradients, variables, update):
        """Add `gradients`; after `passes` calls reduce the sums and call `update` with them; whether it did."""
        gradients = [self.reducer.densified(gradient) for gradient in gradients]
        if any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
            raise ValueError(
                "IndexedSlices are not supported when `backward_passes_per_step` > 1 and `sparse_as_dense` is False. "
                "An embedding makes them: pass sparse_as_dense=True to DistributedOptimizer"
            )
        sums = {i: self._sum_for(variables[i]) for i, gradient in enumerate(gradients) if gradient is not None}
        added = [total.assign_add(tf.cast(gradients[i], total.dtype)) for i, total in sums.items()]

        def reduce_and_update():
            values = [tf.convert_to_tensor(sums[i]) if i in sums else None for i in range(len(gradients))]
            if self.average:
                values = [divided(value, self.passes) for value in values]
            with _after([update(self.reducer.reduce(values, variables))]):
                done = [total.assign(tf.zeros_like(total)) for total in [*sums.values(), self.count]]
            with _after(done):
                return tf.constant(True)

        with _after(added):
            count = self.count.assign_add(1)
        with _after([count]):
            return tf.cond(tf.equal(self.count, self.passes), reduce_and_update, lambda: tf.constant(False))

    def _sum_for(self, variable):
        with tf.init_scope():  # outside the graph that is being traced
            if self.count is None:
                self.count = tf.Variable(0, trainable=False, dtype=tf.int64)
            if ref(variable) not in self.sums:
                zeros = tf.zeros(variable.shape, variable.dtype)
                self.sums[ref(variable)] = tf.Variable(zeros, trainable=False)
        return self.sums[ref(variable)]


def _after(done):
    """Only a graph of TensorFlow 1 has to be told that what follows comes after these."""
    return tf.control_dependencies([each for each in done if hasattr(each, "op") or isinstance(each, tf.Operation)])

"""Training as in TensorFlow 1: optimizers of tf.compat.v1.train, and the hook for MonitoredTrainingSession."""

import tensorflow as tf

from .accumulator import Accumulator
from .functions import broadcast_global_variables


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Give all ranks the variables of rank `root_rank`, right after they were initialized or restored."""

    def __init__(self, root_rank, device=""):
        self.root_rank = root_rank

    def begin(self):
        self.operation = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session, coord):
        session.run(self.operation)


class DistributedOptimizer(tf.compat.v1.train.Optimizer):
    """An optimizer of tf.compat.v1.train whose `compute_gradients` gives gradients reduced over the ranks, in one go.

    With several passes, `apply_gradients` adds them up; the last one reduces the sums and updates.
    """

    def __init__(self, optimizer, use_locking, reducer, passes, average):
        super().__init__(use_locking, reducer.name)
        self._optimizer, self._reducer = optimizer, reducer
        self._accumulator = Accumulator(reducer, passes, average) if passes > 1 else None

    def compute_gradients(self, *args, **kwargs):
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        if self._accumulator or not pairs:
            return pairs
        gradients, variables = zip(*pairs)
        return list(zip(self._reducer.reduce(gradients, variables), variables))

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        if self._accumulator is None:
            return self._optimizer.apply_gradients(grads_and_vars, global_step, name)
        gradients, variables = zip(*grads_and_vars)

        def update(sums):
            return self._optimizer.apply_gradients(zip(sums, variables), global_step, name)

        return self._accumulator.step(gradients, variables, update)

    def get_slot(self, *args, **kwargs):
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args, **kwargs):
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self):
        return self._optimizer.variables()

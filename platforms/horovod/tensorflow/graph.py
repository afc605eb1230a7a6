"""Training as in TensorFlow 1: optimizers of tf.compat.v1.train, and the hook for MonitoredTrainingSession."""

import tensorflow as tf

from .functions import broadcast_global_variables
from .gradients import Accumulator, GradientReducer


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

    def __init__(self, optimizer, name, use_locking, backward_passes_per_step, average_aggregated_gradients, **options):
        self._optimizer, passes = optimizer, backward_passes_per_step
        self._reducer = GradientReducer(name or f"Distributed{type(optimizer).__name__}", **options)
        super().__init__(use_locking, self._reducer.name)
        several = Accumulator(self._reducer, passes, average_aggregated_gradients)
        self._accumulator = several if passes > 1 else None
        for each in ("get_slot", "get_slot_names", "variables"):
            setattr(self, each, getattr(optimizer, each))

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
        return self._accumulator.step(
            gradients,
            variables,
            lambda sums: self._optimizer.apply_gradients(zip(sums, variables), global_step, name),
        )

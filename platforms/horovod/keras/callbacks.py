"""Callbacks for `model.fit` on several ranks; names and arguments are those of Horovod's."""

import warnings

import keras
import numpy as np

from .. import arrays, keras_backend
from ..core import Average, global_process_set, rank, size
from ..signature import signed
from ..tensorflow.functions import broadcast_variables
from ..tensorflow.gradients import ref


class Callback(keras.callbacks.Callback):
    """A callback of Keras 3 that models of tf_keras take, too: theirs ask which hooks it has."""

    _supports_tf_logs = False
    _chief_worker_only = None

    def _implements_train_batch_hooks(self):
        return True

    _implements_test_batch_hooks = _implements_predict_batch_hooks = _implements_train_batch_hooks


def variables_of(optimizer):
    """All variables of an optimizer; of tf_keras's older ones it is a method that gives them."""
    return optimizer.variables() if callable(optimizer.variables) else optimizer.variables


class BroadcastGlobalVariablesCallback(Callback):
    """Start all ranks with the weights and the optimizer state of rank `root_rank`, but for `local_variables`.

    Before the first batch where the model is built by then (it is, in Keras 3's `fit`), else after it. The seeds of
    dropout stay each rank's own.
    """

    def __init__(self, root_rank, device="", local_variables=None):
        super().__init__()
        self.root_rank = root_rank
        self.local = {ref(variable) for variable in local_variables or []}
        self.broadcast_done = False

    def set_model(self, model):
        super().set_model(model)
        if getattr(model, "jit_compile", False):
            warnings.warn("jit_compile is switched off: XLA cannot call the other ranks", stacklevel=2)
            model.jit_compile, model.train_function = False, None  # fit() makes its training step after this

    def on_train_begin(self, logs=None):
        optimizer = getattr(self.model, "optimizer", None)
        if self.model.built and optimizer is not None and not keras_backend.is_keras_2(optimizer):
            if not optimizer.built:
                optimizer.build(self.model.trainable_variables)
            self._broadcast()

    def on_train_batch_end(self, batch, logs=None):
        self._broadcast()

    def _broadcast(self):
        if self.broadcast_done:
            return
        # Not model.variables, where the states of random generators are, too.
        for variables in (self.model.weights, variables_of(self.model.optimizer)):
            broadcast_variables([v for v in variables if ref(v) not in self.local], self.root_rank)
        self.broadcast_done = True


class MetricAverageCallback(Callback):
    """Average the metrics over the ranks at the end of each epoch; place it before callbacks that use metrics."""

    def __init__(self, device="", process_set=global_process_set):
        super().__init__()
        self.process_set = process_set

    def on_epoch_end(self, epoch, logs=None):
        # Other callbacks get the same dict after this one.
        names = sorted(name for name, value in (logs or {}).items() if np.ndim(value) == 0)
        if names:
            values = np.array([float(logs[name]) for name in names])
            values = arrays.allreduce(values, name="MetricAverageCallback", op=Average, process_set=self.process_set)
            logs.update(zip(names, values.tolist()))


class LearningRateScheduleCallback(Callback):
    """Set the learning rate to `initial_lr * multiplier(epoch)` from `start_epoch` up to, not including, `end_epoch`.

    Args:
        initial_lr: the learning rate that the multiplier is of.
        multiplier: a function of the epoch, or a number m, which means m ** epoch.
        staircase: change it at the first batch of an epoch only; else at each, where `epoch` is a fraction.
        momentum_correction: when the rate changes, scale what momentum has gathered along with it (Goyal et al. 2017,
            section 2.2), for optimizers whose velocity has the rate in it.
        steps_per_epoch: found out from `fit` where it is known there.
    """

    @signed(
        "self, initial_lr, multiplier, start_epoch=0, end_epoch=None, staircase=True, momentum_correction=True, "
        "steps_per_epoch=None"
    )
    def __init__(self, initial_lr, multiplier, start_epoch, end_epoch, staircase, momentum_correction, steps_per_epoch):
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr, self.start_epoch, self.end_epoch = initial_lr, start_epoch, end_epoch
        self.multiplier = multiplier if callable(multiplier) else lambda epoch: multiplier**epoch
        self.staircase, self.momentum_correction = staircase, momentum_correction
        self.steps_per_epoch, self.current_epoch = steps_per_epoch, None

    def on_train_begin(self, logs=None):
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = (self.params or {}).get("steps")
            if not self.steps_per_epoch:
                raise ValueError(
                    f"Could not autodetect the number of steps: give {type(self).__name__} steps_per_epoch"
                )

    def on_epoch_begin(self, epoch, logs=None):
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        epoch = self.current_epoch
        if epoch < self.start_epoch or (self.end_epoch is not None and epoch >= self.end_epoch):
            return
        if not self.staircase:
            self._adjust(epoch + float(batch) / self.steps_per_epoch)
        elif batch == 0:
            self._adjust(epoch)

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            logs["lr"] = self._rate()

    def _rate(self):
        return float(np.asarray(self.model.optimizer.learning_rate))

    def _adjust(self, epoch):
        old, new = self._rate(), self.initial_lr * self.multiplier(epoch)
        self.model.optimizer.learning_rate = new
        if self.momentum_correction and old and new != old:
            # Keras puts the number `momentum` into the compiled step, where it cannot be changed for one
            # step as the paper has it; scaling the velocity itself comes to the same.
            optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
            gathered = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None)
            for velocity in gathered if getattr(optimizer, "momentum", 0) and gathered else ():
                velocity.assign(velocity * (new / old))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raise the learning rate from `initial_lr / size()` to `initial_lr` over the first epochs (Goyal et al. 2017)."""

    def __init__(self, initial_lr, warmup_epochs=5, momentum_correction=True, steps_per_epoch=None, verbose=0):
        def multiplier(epoch):
            epoch += 1.0 / self.steps_per_epoch  # one step ahead, so that an epoch ends with a round number
            return (epoch * (size() - 1) / warmup_epochs + 1) / size()

        super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self.verbose = verbose

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        if epoch == self.end_epoch - 1 and self.verbose > 0 and rank() == 0:
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._rate():g}.")

"""A Keras optimizer whose gradients are reduced over the ranks before it uses them."""

import keras
import tensorflow as tf

from .. import keras_backend
from ..core import Adasum, Average, global_process_set
from .collectives import as_is, divided
from .compression import Compression
from .gradients import GradientReducer, layer_weights, ref


class _Distributed:
    """What a distributed optimizer has on top of its own class (see `_class_like`)."""

    _hvd_reducer = _hvd_accumulator = None

    @as_is
    def apply(self, grads, trainable_variables=None):
        gradients = list(grads)
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if not gradients or self._hvd_reducer is None or len(variables) != len(gradients):
            return super().apply(gradients, trainable_variables)  # nothing to reduce, or Keras's own error
        update = super().apply
        if self._hvd_accumulator is None:
            return update(self._hvd_reducer.reduce(gradients, variables), variables)
        if not self.built:  # no variable can be made in the branch below
            with keras.name_scope(self.name):
                self.build(variables)
        self._hvd_accumulator.step(gradients, variables, lambda sums: update(sums, variables))

    def register_local_var(self, variable):
        """Do not reduce the gradients of this variable."""
        self._hvd_reducer.keep_local([variable])


class Accumulator:
    """Sums gradients of several backward passes, and reduces the sums once.

    Its variables are not among the optimizer's, so that a model saved with it loads without it.
    """

    def __init__(self, reducer, passes, average):
        self.reducer, self.passes, self.average = reducer, passes, average
        self.count, self.sums = None, {}

    def step(self, gradients, variables, update):
        """Add `gradients`; after `passes` calls reduce the sums and call `update` with them."""
        gradients = [self.reducer.densified(gradient) for gradient in gradients]
        if any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
            raise ValueError(
                "IndexedSlices are not supported when `backward_passes_per_step` > 1 and `sparse_as_dense` is False. "
                "An embedding makes them: pass sparse_as_dense=True to DistributedOptimizer"
            )
        sums = {i: self._sum_for(variables[i]) for i, gradient in enumerate(gradients) if gradient is not None}
        for i, total in sums.items():
            total.assign_add(tf.cast(gradients[i], total.dtype))
        self.count.assign_add(1)

        def reduce_and_update():
            values = [tf.convert_to_tensor(sums[i]) if i in sums else None for i in range(len(gradients))]
            if self.average:
                values = [divided(value, self.passes) for value in values]
            update(self.reducer.reduce(values, variables))
            for total in [*sums.values(), self.count]:
                total.assign(tf.zeros_like(total))
            return tf.constant(True)

        return tf.cond(tf.equal(self.count, self.passes), reduce_and_update, lambda: tf.constant(False))

    def _sum_for(self, variable):
        with tf.init_scope():  # outside the graph that is being traced
            if self.count is None:
                self.count = tf.Variable(0, trainable=False, dtype=tf.int64)
            if ref(variable) not in self.sums:
                zeros = tf.zeros(variable.shape, variable.dtype)
                self.sums[ref(variable)] = tf.Variable(zeros, trainable=False)
        return self.sums[ref(variable)]


_classes = {}  # of optimizers -> what _class_like made of them


def _class_like(base):
    """A subclass of an optimizer's class under that class's own name.

    Keras saves an optimizer by name and module of its class, so that a saved model loads without this package, too.
    """
    if base not in _classes:
        about = {"__module__": base.__module__, "__doc__": base.__doc__}
        _classes[base] = type(base.__name__, (_Distributed, base), about)
    return _classes[base]


def distribute(optimizer, reducer, passes=1, average=False):
    """Make `optimizer` itself a distributed one; its state stays. Returns it."""
    optimizer.__class__ = _class_like(type(optimizer))
    optimizer._hvd_reducer = reducer
    optimizer._hvd_accumulator = Accumulator(reducer, passes, average) if passes > 1 else None
    return optimizer


def copied(optimizer):
    """A new optimizer like `optimizer`, with its state."""
    new = type(optimizer).from_config(optimizer.get_config())
    if optimizer.built:
        new.build(optimizer._trainable_variables)
        for mine, its in zip(new.variables, optimizer.variables):
            mine.assign(its)
    return new


def DistributedOptimizer(
    optimizer,
    name=None,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    sparse_as_dense=False,
    gradient_predivide_factor=1.0,
    op=Average,
    backward_passes_per_step=1,
    average_aggregated_gradients=False,
    num_groups=0,
    groups=None,
    process_set=global_process_set,
    scale_local_gradients=True,
):
    """An optimizer like `optimizer` (and of its class) that first reduces the gradients over the ranks.

    As in Horovod (https://horovod.readthedocs.io/en/stable/api.html), with one difference: with
    `backward_passes_per_step` > 1 `iterations` counts updates, not passes, so that Adam's bias correction and schedules
    are those of one process with the global batch.

    Args:
        optimizer: a Keras optimizer. Under the policy mixed_float16 it gets its LossScaleOptimizer here, since the
            ranks must see the same gradients when they decide whether one overflowed.
        name: a prefix of the names that error texts show.
        compression: Compression.none, .fp16 or .bf16: what the gradients are cast to while they travel.
        sparse_as_dense: reduce gradients of embeddings as whole tensors rather than gather their rows.
        gradient_predivide_factor: divide by it before the sum and by size / it afterwards.
        op: Average or Sum (Min, Max and Product are taken, too).
        backward_passes_per_step: sum the gradients of so many calls before the ranks meet.
        average_aggregated_gradients: divide those sums by their number.
        groups: None, a number of groups, or a list of lists of variables, which are reduced together.
        process_set: the ranks that take part; the others use their own gradients.

    Raises:
        ValueError: no Keras 3 optimizer, or options that contradict each other.
    """
    keras_backend.refuse_legacy(optimizer)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(
            f"Provided optimizer doesn't inherit from Keras's: {optimizer!r}. Give an object of keras.optimizers "
            "(Keras 3); with others use hvd.DistributedGradientTape"
        )
    if isinstance(optimizer, _Distributed):
        raise ValueError("this optimizer is distributed already: its gradients would be reduced twice")
    if op == Adasum:
        raise ValueError("op == Adasum is not supported yet with Keras")
    if isinstance(backward_passes_per_step, bool) or backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step must be > 0, not {backward_passes_per_step!r}")
    reducer = GradientReducer(
        name or f"Distributed{type(optimizer).__name__}",
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    new = copied(optimizer)
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if keras.config.dtype_policy().name == "mixed_float16" and not scaled:
        new = keras.optimizers.LossScaleOptimizer(new, name="loss_scale_optimizer")
    return distribute(new, reducer, backward_passes_per_step, average_aggregated_gradients)


def PartialDistributedOptimizer(
    optimizer,
    name=None,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    sparse_as_dense=False,
    gradient_predivide_factor=1.0,
    op=Average,
    groups=None,
    process_set=global_process_set,
    local_layers=None,
    scale_local_gradients=True,
    **options,
):
    """A DistributedOptimizer that leaves alone the gradients of `local_layers` (a built layer or a list of them).

    Args:
        options: the other arguments of DistributedOptimizer.
    """
    new = DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        **options,
    )
    new._hvd_reducer.keep_local(layer_weights(local_layers))
    return new


def load_model(filepath, custom_optimizers=None, custom_objects=None, compression=Compression.none, legacy_opts=False):
    """Load a model that Keras saved, with its optimizer as a DistributedOptimizer that goes on where it was.

    Args:
        filepath: what `model.save` wrote, with or without a DistributedOptimizer.
        custom_optimizers: a list of optimizer classes that are not Keras's.
        custom_objects: a dict of names and classes or functions that are not Keras's.
    """
    objects = {cls.__name__: cls for cls in custom_optimizers or []}
    model = keras.models.load_model(filepath, custom_objects={**objects, **(custom_objects or {})})
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        distribute(optimizer, GradientReducer(f"Distributed{type(optimizer).__name__}", compression))
    return model

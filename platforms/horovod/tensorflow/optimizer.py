"""A Keras optimizer whose gradients are reduced over the ranks before it uses them."""

import keras

from .. import keras_backend
from ..core import Adasum
from .collectives import Compression, as_is, spelled
from .gradients import COMPRESSED, GROUPS, Accumulator, GradientReducer

KERAS = f"optimizer, name=None, {COMPRESSED}, gradient_predivide_factor=1.0, op=Average"


class _Distributed:
    """What a distributed optimizer has on top of its own class (see `_class_like`)."""

    _hvd_reducer = _hvd_accumulator = None

    @as_is
    def apply(self, grads, trainable_variables=None):
        gradients = list(grads)
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if not gradients or self._hvd_reducer is None or len(variables) != len(gradients):
            return super().apply(gradients, trainable_variables)  # nothing to reduce, or Keras's own error
        if self._hvd_accumulator is not None and not self.built:  # no variable can be made in a branch
            with keras.name_scope(self.name):
                self.build(variables)
        apply = super().apply
        return self._hvd_reduced(gradients, variables, lambda reduced: apply(reduced, variables))

    def _hvd_reduced(self, gradients, variables, update):
        """Call `update` with the reduced gradients, if it is time for that."""
        if self._hvd_accumulator is None:
            return update(self._hvd_reducer.reduce(gradients, variables))
        return self._hvd_accumulator.step(gradients, variables, update)


class _DistributedOfKeras2(_Distributed):
    """The same for an optimizer of tf_keras."""

    @as_is
    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        gradients, variables = zip(*grads_and_vars)
        apply = super().apply_gradients
        return self._hvd_reduced(
            list(gradients), variables, lambda reduced: apply(zip(reduced, variables), *args, **kwargs)
        )


_classes = {}  # of optimizers -> what _class_like made of them


def _class_like(base):
    """A subclass of an optimizer's class under that class's own name.

    Keras saves an optimizer by name and module of its class, so that a saved model loads without this package, too.
    """
    if base not in _classes:
        about = {"__module__": base.__module__, "__doc__": base.__doc__}
        ours = _Distributed if issubclass(base, keras.optimizers.Optimizer) else _DistributedOfKeras2
        _classes[base] = type(base.__name__, (ours, base), about)
    return _classes[base]


def distribute(optimizer, reducer, passes=1, average=False):
    """Make `optimizer` itself a distributed one; its state stays. Returns it."""
    optimizer.__class__ = _class_like(type(optimizer))
    optimizer._hvd_reducer = reducer
    optimizer._hvd_accumulator = Accumulator(reducer, passes, average) if passes > 1 else None
    return optimizer


def copied(optimizer):
    """A new optimizer like `optimizer`, with its state; that of tf_keras has none."""
    new = type(optimizer).from_config(optimizer.get_config())
    if isinstance(optimizer, keras.optimizers.Optimizer) and optimizer.built:
        new.build(optimizer._trainable_variables)
        for mine, its in zip(new.variables, optimizer.variables):
            mine.assign(its)
    return new


@spelled(
    f"{KERAS}, backward_passes_per_step=1, average_aggregated_gradients=False, {GROUPS}, scale_local_gradients=True"
)
def DistributedOptimizer(
    optimizer, name, backward_passes_per_step, average_aggregated_gradients, compression, **options
):
    """An optimizer like `optimizer` (and of its class) that first reduces the gradients over the ranks.

    As in Horovod, with one difference: with `backward_passes_per_step` > 1 `iterations` counts updates, not passes, so
    that Adam's bias correction and schedules are those of one process with the global batch.

    Args:
        optimizer: of Keras, or of tf_keras. Under the policy mixed_float16 it gets its LossScaleOptimizer here, since
            the ranks must see the same gradients when they decide whether one overflowed.
        backward_passes_per_step: sum the gradients of so many calls before the ranks meet;
            `average_aggregated_gradients`: divide those sums by their number.
        options: of `gradients.GradientReducer`.
    """
    keras_backend.check()
    of_keras_2 = keras_backend.is_keras_2(optimizer) and hasattr(optimizer, "apply_gradients")
    if not isinstance(optimizer, keras.optimizers.Optimizer) and not of_keras_2:
        raise ValueError(
            f"Provided optimizer doesn't inherit from Keras's: {optimizer!r}. Give an object of keras.optimizers; "
            "with others use hvd.DistributedGradientTape"
        )
    if isinstance(optimizer, _Distributed):
        raise ValueError("this optimizer is distributed already: its gradients would be reduced twice")
    if options.get("op") == Adasum:
        raise ValueError("op == Adasum is not supported yet with Keras")
    if isinstance(backward_passes_per_step, bool) or backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step must be > 0, not {backward_passes_per_step!r}")
    reducer = GradientReducer(name or f"Distributed{type(optimizer).__name__}", compression, **options)
    new = copied(optimizer)
    scaled = of_keras_2 or isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if keras.config.dtype_policy().name == "mixed_float16" and not scaled:
        new = keras.optimizers.LossScaleOptimizer(new, name="loss_scale_optimizer")
    return distribute(new, reducer, backward_passes_per_step, average_aggregated_gradients)


def load_model(filepath, custom_optimizers=None, custom_objects=None, compression=Compression.none, legacy_opts=False):
    """Load a model that Keras saved, with its optimizer as a DistributedOptimizer that goes on where it was.

    `custom_optimizers`: a list of optimizer classes, `custom_objects`: a dict of names and others that are not Keras's.
    """
    objects = {cls.__name__: cls for cls in custom_optimizers or []}
    model = keras.models.load_model(filepath, custom_objects={**objects, **(custom_objects or {})})
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        distribute(optimizer, GradientReducer(f"Distributed{type(optimizer).__name__}", compression))
    return model

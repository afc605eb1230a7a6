"""Gradients of all ranks reduced together: what DistributedGradientTape and DistributedOptimizer have in common."""

import warnings

import tensorflow as tf

from ..core import Average, global_process_set
from .collectives import as_is, dense, gather_slices, reduce_dense
from .compression import Compression
from .functions import name_of


def ref(variable):
    """A key for a variable, the same for a Keras variable and the TensorFlow variable in it."""
    inside = getattr(variable, "value", None)
    return (inside if isinstance(inside, tf.Variable) else variable).ref()


class GradientReducer:
    """Reduces a list of gradients over the ranks, in one meeting; the options are those of DistributedOptimizer.

    Raises:
        ValueError: options that contradict each other.
    """

    def __init__(
        self, name, compression=Compression.none, sparse_as_dense=False, op=Average, gradient_predivide_factor=1.0,
        num_groups=0, groups=None, process_set=global_process_set, scale_local_gradients=True,
    ):  # fmt: skip
        if gradient_predivide_factor != 1.0 and op != Average:
            raise ValueError("gradient_predivide_factor not supported with op != Average")
        if num_groups != 0:
            warnings.warn("num_groups= is deprecated; use groups=", DeprecationWarning, stacklevel=3)
            groups = num_groups if groups is None else groups
        if groups is not None and not (isinstance(groups, list) or (isinstance(groups, int) and groups > 0)):
            raise ValueError("groups should be a non-negative integer or a list of list of tf.Variable.")
        self.name, self.compression, self.sparse_as_dense, self.op = name, compression, sparse_as_dense, op
        self.prescale, self.postscale = 1.0 / gradient_predivide_factor, gradient_predivide_factor
        self.groups, self.process_set, self.scale_local = groups, process_set, scale_local_gradients
        self.local = set()  # of variables whose gradients stay on their rank

    def keep_local(self, variables):
        """Do not reduce the gradients of these: every rank has weights of its own there."""
        self.local.update(ref(variable) for variable in variables)

    @as_is
    def reduce(self, gradients, variables):
        """The reduced gradients, in the same order; None stays None.

        Args:
            gradients: tensors, IndexedSlices or None.
            variables: what they are gradients of; their paths name the tensors in error texts.
        """
        gradients = [self.densified(gradient) for gradient in gradients]
        if not self.process_set.included() or self.process_set.size() == 1:
            return gradients
        names = [f"{self.name}.{name_of(variable, i)}" for i, variable in enumerate(variables)]
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        shared = [i for i in present if not self._is_local(variables[i])]
        for i in present:
            if i not in shared and self.scale_local:
                gradients[i] = _divided(gradients[i], self.process_set.size())
            elif i in shared and isinstance(gradients[i], tf.IndexedSlices):
                gradients[i] = gather_slices(gradients[i], self.op, name=names[i], process_set=self.process_set)
        plain = [i for i in shared if not isinstance(gradients[i], tf.IndexedSlices)]
        for indices, grouped in self._groups(plain, variables):
            packed, contexts = zip(*[self.compression.compress(gradients[i]) for i in indices])
            own = names[indices[0]] if grouped else [names[i] for i in indices]
            scales = (self.prescale, self.postscale)
            reduced = reduce_dense(list(packed), own, self.op, *scales, self.process_set, grouped)
            for i, tensor, context in zip(indices, reduced, contexts):
                gradients[i] = self.compression.decompress(tensor, context)
        return gradients

    def densified(self, gradient):
        """`gradient`, dense if it is to be."""
        if gradient is None or (isinstance(gradient, tf.IndexedSlices) and not self.sparse_as_dense):
            return gradient
        return dense(gradient)

    def _is_local(self, variable):
        return bool(self.local) and ref(variable) in self.local

    def _groups(self, indices, variables):
        """[(indices that are reduced in one call, whether as one operation)]"""
        if not indices:
            return []
        if self.groups is None:
            return [(indices, False)]
        if isinstance(self.groups, int):
            count = min(self.groups, len(indices))
            bounds = [len(indices) * k // count for k in range(count + 1)]
            return [(indices[start:end], True) for start, end in zip(bounds, bounds[1:])]
        place = {ref(variables[i]): i for i in indices}
        wanted = [[place.pop(ref(v)) for v in group if ref(v) in place] for group in self.groups]
        return [(group, True) for group in wanted if group] + [([i], False) for i in place.values()]


def _divided(gradient, count):
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / count, gradient.indices, gradient.dense_shape)
    return gradient / count


class _DistributedTape(tf.GradientTape):
    """A tape with the state of another one, whose gradients are reduced."""

    def __init__(self, tape, reducer):
        super().__init__()
        self.__dict__.update(tape.__dict__)
        self._reducer = reducer

    def register_local_source(self, source):
        """Do not reduce the gradients of this variable."""
        self._reducer.keep_local([source])

    @as_is
    def gradient(self, target, sources, output_gradients=None, *args, **kwargs):
        gradients = super().gradient(target, sources, output_gradients, *args, **kwargs)
        reduced = self._reducer.reduce(tf.nest.flatten(gradients), tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(sources, reduced)


@as_is
def DistributedGradientTape(
    gradtape, device_dense="", device_sparse="", compression=Compression.none, sparse_as_dense=False, op=Average,
    gradient_predivide_factor=1.0, num_groups=0, groups=None, process_set=global_process_set,
    scale_local_gradients=True,
):  # fmt: skip
    """A tf.GradientTape like `gradtape`, whose `gradient()` gives gradients reduced over the ranks.

    `gradtape` may have recorded already, or be entered through what this returns.

    Raises:
        ValueError: options that contradict each other.
    """
    reducer = GradientReducer(
        "DistributedGradientTape", compression, sparse_as_dense, op, gradient_predivide_factor, num_groups, groups,
        process_set, scale_local_gradients,
    )  # fmt: skip
    return _DistributedTape(gradtape, reducer)


def PartialDistributedGradientTape(gradtape, *args, local_layers=None, **kwargs):
    """A DistributedGradientTape that leaves alone the gradients of `local_layers` (a layer or a list of them)."""
    tape = DistributedGradientTape(gradtape, *args, **kwargs)
    tape._reducer.keep_local(layer_weights(local_layers))
    return tape


def layer_weights(layers):
    """The trainable weights of a layer, of a list of layers, or of None."""
    layers = [] if layers is None else layers if isinstance(layers, (list, tuple, set)) else [layers]
    return [weight for layer in layers for weight in layer.trainable_weights]

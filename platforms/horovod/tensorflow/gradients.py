"""Gradients of all ranks reduced together: what DistributedGradientTape and DistributedOptimizer have in common."""

import tensorflow as tf

from ..core import Average
from ..core import global_process_set as WORLD
from ..signature import parameters
from .collectives import as_is, dense, divided, gather_slices, reduce_dense
from .compression import Compression
from .functions import name_of

REDUCED = "sparse_as_dense op gradient_predivide_factor num_groups groups process_set"


def ref(variable):
    """A key for a variable, the same for a Keras variable and the TensorFlow variable in it."""
    inside = getattr(variable, "value", None)
    return (inside if isinstance(inside, tf.Variable) else variable).ref()


class GradientReducer:
    """Reduces a list of gradients over the ranks, in one meeting.

    Args:
        name: a prefix of the names that error texts show.
        compression: Compression.none, .fp16 or .bf16: what the gradients are cast to while they travel.
        sparse_as_dense: reduce gradients of embeddings as whole tensors rather than gather their rows.
        op: Average or Sum (Min, Max and Product are taken, too).
        gradient_predivide_factor: divide by it before the sum and by size / it afterwards.
        num_groups, groups: taken for Horovod's sake; all dense gradients are reduced as one operation.
        process_set: the ranks that take part; the others use their own gradients.
        scale_local_gradients: divide gradients that stay on their rank by the number of ranks.

    Raises:
        ValueError: options that contradict each other.
    """

    def __init__(
        self,
        name,
        compression=Compression.none,
        sparse_as_dense=False,
        op=Average,
        gradient_predivide_factor=1.0,
        num_groups=0,
        groups=None,
        process_set=WORLD,
        scale_local_gradients=True,
    ):
        if gradient_predivide_factor != 1.0 and op != Average:
            raise ValueError("gradient_predivide_factor not supported with op != Average")
        if groups is not None and not (isinstance(groups, list) or (isinstance(groups, int) and groups > 0)):
            raise ValueError("groups should be a non-negative integer or a list of list of tf.Variable.")
        self.name, self.compression, self.sparse_as_dense, self.op = name, compression, sparse_as_dense, op
        self.scales = 1.0 / gradient_predivide_factor, gradient_predivide_factor
        self.process_set, self.scale_local = process_set, scale_local_gradients
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
        size = self.process_set.size() if self.process_set.included() else 1
        if size == 1:
            return gradients
        names = [f"{self.name}.{name_of(variable, i)}" for i, variable in enumerate(variables)]
        plain = []
        for i, (gradient, variable) in enumerate(zip(gradients, variables)):
            if gradient is None or (self.local and ref(variable) in self.local):
                gradients[i] = divided(gradient, size) if self.scale_local else gradient
            elif isinstance(gradient, tf.IndexedSlices):
                gradients[i] = gather_slices(gradient, self.op, (1.0, 1.0), names[i], self.process_set)
            else:
                plain.append(i)
        options = self.op, self.scales, self.process_set, self.compression
        reduced = reduce_dense([gradients[i] for i in plain], f"{self.name}.gradients", *options)
        for i, gradient in zip(plain, reduced):
            gradients[i] = gradient
        return gradients

    def densified(self, gradient):
        """`gradient`, dense if it is to be."""
        if gradient is None or (isinstance(gradient, tf.IndexedSlices) and not self.sparse_as_dense):
            return gradient
        return dense(gradient)


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
@parameters(f"gradtape device_dense device_sparse compression {REDUCED} scale_local_gradients", GradientReducer)
def DistributedGradientTape(gradtape, device_dense="", device_sparse="", compression=Compression.none, **options):
    """A tf.GradientTape like `gradtape`, whose `gradient()` gives gradients reduced over the ranks.

    `gradtape` may have recorded already, or be entered through what this returns.

    Args:
        options: sparse_as_dense, op, gradient_predivide_factor, num_groups, groups, process_set,
            scale_local_gradients: see `GradientReducer`.
    """
    return _DistributedTape(gradtape, GradientReducer("DistributedGradientTape", compression, **options))


@parameters(
    f"gradtape device_dense device_sparse compression {REDUCED} local_layers scale_local_gradients",
    DistributedGradientTape,
)
def PartialDistributedGradientTape(gradtape, local_layers=None, **options):
    """A DistributedGradientTape that leaves alone the gradients of `local_layers` (a layer or a list of them)."""
    tape = DistributedGradientTape(gradtape, **options)
    tape._reducer.keep_local(layer_weights(local_layers))
    return tape


def layer_weights(layers):
    """The trainable weights of a layer, of a list of layers, or of None."""
    layers = [] if layers is None else layers if isinstance(layers, (list, tuple, set)) else [layers]
    return [weight for layer in layers for weight in layer.trainable_weights]

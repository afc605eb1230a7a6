"""Gradients of all ranks reduced together: what DistributedGradientTape and DistributedOptimizer have in common."""

import tensorflow as tf

from ..core import Average
from ..core import global_process_set as WORLD
from ..signature import SET
from .collectives import DEVICES, Compression, as_is, dense, divided, gather_slices, reduce_dense, spelled
from .functions import name_of

COMPRESSED = f"{DEVICES}, compression=none, sparse_as_dense=False"
GROUPS = f"num_groups=0, groups=None, {SET}"
TAPE = f"gradtape, {COMPRESSED}, op=Average, gradient_predivide_factor=1.0, {GROUPS}"


def ref(variable):
    """A key for a variable, the same for a Keras variable and the TensorFlow variable in it."""
    inside = getattr(variable, "value", None)
    return (inside if isinstance(inside, tf.Variable) else variable).ref()


class GradientReducer:
    """Reduces a list of gradients over the ranks, in one meeting. ValueError where options contradict each other.

    Args:
        name: a prefix of the names that error texts show.
        compression: Compression.none, .fp16 or .bf16: what the gradients are cast to while they travel.
        sparse_as_dense: reduce gradients of embeddings as whole tensors rather than gather their rows.
        op: Average or Sum (Min, Max and Product are taken, too).
        gradient_predivide_factor: divide by it before the sum and by size / it afterwards.
        num_groups, groups: taken for Horovod's sake; all dense gradients are reduced as one operation.
        process_set: the ranks that take part; the others use their own gradients.
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
        **_,
    ):
        if gradient_predivide_factor != 1.0 and op != Average:
            raise ValueError("gradient_predivide_factor not supported with op != Average")
        if groups is not None and not (isinstance(groups, list) or (isinstance(groups, int) and groups > 0)):
            raise ValueError("groups should be a non-negative integer or a list of list of tf.Variable.")
        self.name, self.compression, self.sparse_as_dense, self.op = name, compression, sparse_as_dense, op
        self.scales = 1.0 / gradient_predivide_factor, gradient_predivide_factor
        self.process_set = process_set

    @as_is
    def reduce(self, gradients, variables):
        """The reduced gradients (tensors, IndexedSlices or None) of variables, whose paths error texts show."""
        gradients = [self.densified(gradient) for gradient in gradients]
        if not self.process_set.included() or self.process_set.size() == 1:
            return gradients
        names = [f"{self.name}.{name_of(variable, i)}" for i, variable in enumerate(variables)]
        plain = []
        for i, gradient in enumerate(gradients):
            if isinstance(gradient, tf.IndexedSlices):
                gradients[i] = gather_slices(gradient, self.op, (1.0, 1.0), names[i], self.process_set)
            elif gradient is not None:
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

    @as_is
    def gradient(self, target, sources, output_gradients=None, *args, **kwargs):
        gradients = super().gradient(target, sources, output_gradients, *args, **kwargs)
        reduced = self._reducer.reduce(tf.nest.flatten(gradients), tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(sources, reduced)


@spelled(f"{TAPE}, scale_local_gradients=True")
def DistributedGradientTape(gradtape, **options):
    """A tf.GradientTape like `gradtape`, whose `gradient()` gives gradients reduced over the ranks (`GradientReducer`).

    `gradtape` may have recorded already, or be entered through what this returns.
    """
    return _DistributedTape(gradtape, GradientReducer("DistributedGradientTape", **options))


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
                self.sums[ref(variable)] = tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False)
        return self.sums[ref(variable)]


def _after(done):
    """Only a graph of TensorFlow 1 has to be told that what follows comes after these."""
    return tf.control_dependencies([each for each in done if hasattr(each, "op") or isinstance(each, tf.Operation)])

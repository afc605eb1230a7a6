"""Horovod's collectives on TensorFlow's tensors, with gradients: eagerly, inside tf.function, and in a Session.

Names, arguments and gradients are those of Horovod 0.28 (https://horovod.readthedocs.io/en/stable/api.html). The
arguments that place operations on devices (`device_dense`, `device_sparse`) and `ignore_name_scope` are taken
and have no effect: the ranks meet in main memory.

All ranks have to run collectives in the same order. Eagerly and in a tf.function that is the order of the program.
TensorFlow runs gradients of a tf.function in any order: there they wait for each other. So do the collectives of a
graph of TensorFlow 1, each for the last one that needs no more feeds and has no more effects than it has itself; for
the rest a name that differs between ranks is an error. Where no order can be made (`check_order`), they are refused.
"""

import collections
import itertools

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import control_flow_util

from .. import arrays
from ..core import Adasum, Average, CollectiveError, NotInitialized, Sum, job, rank, reduction, sets
from ..core import global_process_set as WORLD
from ..signature import parameters
from .compression import Compression

NO_XLA = (
    "platforms.horovod was called in code that XLA compiles (jit_compile=True), where no rank can meet the others: XLA "
    "cannot call Python. Nothing was sent. Compile the model with `model.compile(..., jit_compile=False)`, or "
    "leave jit_compile out of the tf.function that calls hvd"
)
NO_ORDER = (
    "platforms.horovod was called in a function of tf.data, which TensorFlow runs in another order on each rank, so "
    "that values of different calls would be mixed up. Nothing was sent. Call it eagerly or in a tf.function, on what "
    "the dataset gives"
)
# What a collective of a graph may repeat without harm, because another one waits for it.
HARMLESS = ("VarHandleOp", "ReadVariableOp", "VariableV2", "RandomUniform", "RandomUniformInt", "RandomStandardNormal")

# TensorFlow would rewrite our functions wherever a tf.function calls them, and run them more slowly.
as_is = tf.autograph.experimental.do_not_convert
dense = tf.convert_to_tensor  # of a tensor, a variable (also Keras's), IndexedSlices, or what can be made one


class FailedPreconditionError(CollectiveError, tf.errors.FailedPreconditionError):
    """What Horovod raises for TensorFlow where ranks disagree or `init()` was not called."""

    def __init__(self, error):
        tf.errors.FailedPreconditionError.__init__(self, None, None, str(error))


def check_order():
    """Refuse a graph whose collectives no rank can run in the order of the program.

    Raises:
        NotImplementedError: XLA compiles the graph, or tf.data runs it.
    """
    graph = tf.compat.v1.get_default_graph()
    if control_flow_util.GraphOrParentsInXlaContext(graph):
        raise NotImplementedError(NO_XLA)
    while isinstance(graph, FuncGraph):
        if graph.name.startswith(("Dataset_", "tf_data_")):
            raise NotImplementedError(NO_ORDER)
        graph = graph.outer_graph


def in_session():
    """Whether a Session of TensorFlow 1 will run what is called now."""
    return not tf.compat.v1.executing_eagerly_outside_functions()


class _Calls:
    """The collectives of one graph, or of one branch in it, where TensorFlow itself keeps no order."""

    def __init__(self):
        self.made = []  # (operation, its effects)

    def before(self, inputs, whole):
        """(what a collective of `inputs` has to wait for, its effects); `whole`: nothing of the graph runs alone."""
        effects = set() if whole else self._effects(inputs)
        earlier = (operation for operation, theirs in reversed(self.made) if theirs <= effects)
        return list(itertools.islice(earlier, 1)), effects

    def _effects(self, tensors):
        """The feeds, and what takes or changes something, on which tensors depend."""
        ours, found, seen = {operation for operation, _ in self.made}, set(), set()
        todo = [tensor.op for tensor in tensors]
        while todo:
            operation = todo.pop()
            if operation not in seen:
                seen.add(operation)
                todo += [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
                takes = operation.type.startswith("Placeholder") or operation.op_def.is_stateful
                if takes and operation.type not in HARMLESS and operation not in ours:
                    found.add(operation)
        return found


def calls_of(graph):
    """The _Calls of the branch of a graph in which operations are made now."""
    if not hasattr(graph, "_platforms_horovod"):
        graph._platforms_horovod = collections.defaultdict(_Calls)
    return graph._platforms_horovod[graph._get_control_flow_context()]


@as_is
def call(function, inputs, dtypes):
    """Call `function` on `inputs` as NumPy arrays; its results as tensors of `dtypes`, without static shapes.

    In a tf.function it becomes a stateful operation. TensorFlow runs those one after another as the program has them,
    hence in the same order on all ranks.

    Args:
        function: takes one array for each input; returns a list of arrays.
        inputs: a list of tensors.
        dtypes: the dtype of each result.

    Raises:
        NotImplementedError: see `check_order`.
        FailedPreconditionError: the ranks disagree (in a tf.function TensorFlow makes it an InvalidArgumentError).
    """

    def on_arrays(*inputs):
        results = function(*map(np.asarray, inputs))
        return [np.asarray(result, dtype.as_numpy_dtype) for result, dtype in zip(results, dtypes)]

    if tf.executing_eagerly():
        try:
            results = on_arrays(*[tensor.numpy() for tensor in inputs])
        except (CollectiveError, NotInitialized) as error:
            raise FailedPreconditionError(error) from error
        return list(map(tf.convert_to_tensor, results))
    check_order()
    graph = tf.compat.v1.get_default_graph()
    if graph._add_control_dependencies:  # a tf.function
        return list(tf.numpy_function(on_arrays, inputs, dtypes))
    calls = calls_of(graph)
    before, effects = calls.before(inputs, isinstance(graph, FuncGraph))
    with tf.control_dependencies(before):
        results = list(tf.numpy_function(on_arrays, inputs, dtypes))
    calls.made.append((results[0].op, effects))
    return results


@as_is
def operation(kind, function, backward, tensors, shapes, name, process_set, dtypes=None, options=()):
    """A collective as `call(function, [*tensors, *options], dtypes)`, with gradients for `tensors`.

    Args:
        kind: "allreduce", …: without a name, collectives of a kind are numbered.
        function: takes the name and the arrays.
        backward: takes the results, the tuple of their gradients, and a name for each kind of collective in it;
            returns the list of the tensors' gradients.
        shapes: the static shape of each result.
        name: a str, None, or the name that a `backward` was given.
        dtypes: of the results, when they differ from those of `tensors`.
        options: further tensors, which have no gradient.
    """
    given = isinstance(name, tf.Tensor)
    # A Session runs in any order what does not wait for each other: then the same number would not be the same call.
    fixed = f"{kind}.{len(calls_of(tf.compat.v1.get_default_graph()).made)}" if in_session() else None

    def named(mark, *inputs):
        mark = mark.item().decode() or fixed or job.current().name(kind, sets.number(process_set))
        return [*function(mark if given or name is None else name, *inputs), mark.encode()]

    @tf.custom_gradient
    def forward(*tensors):
        inputs = [name if given else tf.constant(""), *tensors, *options]
        *results, mark = call(named, inputs, [*(dtypes or [tensor.dtype for tensor in tensors]), tf.string])
        for result, shape in zip(results, shapes):
            result.set_shape(shape)
        return results, lambda *gradients: backward(results, gradients, mark + ".gradient")

    return forward(*tensors)


def any_rows(tensor):
    """The static shape of a tensor with another number of rows."""
    return [None, *tensor.shape[1:]] if tensor.shape.rank else tensor.shape


@as_is
def grouped_allreduce(
    tensors,
    average=None,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=WORLD,
    ignore_name_scope=False,
    name=None,
):
    """Reduce several tensors as one operation; a list in the order of `tensors`."""
    op, scales, results = reduction(op, average), (prescale_factor, postscale_factor), {}
    for i, tensor in enumerate(tensors):
        if isinstance(tensor, tf.IndexedSlices):
            results[i] = gather_slices(tensor, op, scales, name and f"{name}.{i}", process_set)
    plain = [i for i in range(len(tensors)) if i not in results]
    inputs = [dense(tensors[i]) for i in plain]
    reduced = reduce_dense(inputs, name, op, scales, process_set, compression)
    results.update(zip(plain, reduced))
    return [results[i] for i in range(len(tensors))]


@as_is
@parameters(
    "tensor average device_dense device_sparse compression op prescale_factor postscale_factor name process_set "
    "ignore_name_scope",
    grouped_allreduce,
)
def allreduce(tensor, **options):
    """Reduce a tensor of the same shape on all ranks; IndexedSlices are gathered, and reduced where they are used.

    Raises:
        NotImplementedError: `op` or factors that IndexedSlices cannot have.
        FailedPreconditionError, which is a HorovodInternalError, too: the ranks disagree (see `call`).
    """
    return grouped_allreduce([tensor], **options)[0]


@as_is
def reduce_dense(tensors, name, op, scales, process_set, compression=Compression.none):
    """Reduce dense tensors as one operation; `name` as for `operation`, `scales` to multiply by before and after."""
    if not tensors:
        return []

    def reduce(name, *inputs):
        return arrays.grouped_allreduce(list(inputs), name, op, *scales, process_set)

    def backward(results, gradients, name):
        return reduce_dense([dense(gradient) for gradient in gradients], name, op, scales, process_set)

    packed, contexts = zip(*[compression.compress(tensor) for tensor in tensors])
    shapes = [tensor.shape for tensor in packed]
    reduced = operation("allreduce", reduce, backward, packed, shapes, name, process_set)
    return [compression.decompress(tensor, context) for tensor, context in zip(reduced, contexts)]


@as_is
def gather_slices(slices, op, scales, name, process_set):
    """All ranks' slices one after another; for Average divided by the number of ranks."""
    if op == Adasum:
        raise NotImplementedError(
            "The Adasum reduction does not currently support sparse tensors. As a workaround please pass "
            "sparse_as_dense=True to DistributedOptimizer"
        )
    if op not in (Sum, Average):
        raise NotImplementedError("Only Sum and Average ops are supported with tf.IndexedSlices")
    if scales != (1.0, 1.0):
        raise NotImplementedError("Pre/postscale_factor are not supported with tf.IndexedSlices")
    values = allgather(slices.values, name=name and f"{name}.values", process_set=process_set)
    indices = allgather(slices.indices, name=name and f"{name}.indices", process_set=process_set)
    gathered = tf.IndexedSlices(values, indices, slices.dense_shape)
    return divided(gathered, process_set.size()) if op == Average else gathered


def divided(tensor, count):
    """A tensor or IndexedSlices divided by a number; None stays None."""
    if isinstance(tensor, tf.IndexedSlices):
        return tf.IndexedSlices(divided(tensor.values, count), tensor.indices, tensor.dense_shape)
    return None if tensor is None else tensor / tf.cast(count, tensor.dtype)


@as_is
def allgather(tensor, name=None, ignore_name_scope=False, process_set=WORLD):
    """All ranks' tensors, concatenated along the first dimension, which alone may differ between ranks."""
    tensor = dense(tensor)

    def backward(results, gradients, name):
        total = allreduce(gradients[0], op=Average, process_set=process_set, name=name)
        rows = allgather(tf.shape(tensor, tf.int64)[:1], process_set=process_set, name=name + ".rows")
        before = tf.reduce_sum(rows[: process_set.rank()])
        return [total[before : before + rows[process_set.rank()]]]

    def gather(name, array):
        return [arrays.allgather(array, name, process_set)]

    return operation("allgather", gather, backward, [tensor], [any_rows(tensor)], name, process_set)[0]


@as_is
def grouped_allgather(tensors, name=None, ignore_name_scope=False, process_set=WORLD):
    """`allgather` of each of `tensors`; a list."""
    return _each(allgather, tensors, name, process_set=process_set)


@as_is
def broadcast(tensor, root_rank, name=None, ignore_name_scope=False, process_set=WORLD):
    """The tensor of rank `root_rank` (a rank of the whole job) on every rank."""
    tensor = dense(tensor)

    def backward(results, gradients, name):
        total = allreduce(gradients[0], op=Average, process_set=process_set, name=name)
        with tf.control_dependencies([total]):  # a Session would leave it out where its values are not used
            return [total if rank() == root_rank else tf.zeros_like(total)]

    def send(name, array):
        return [arrays.broadcast(array, root_rank, name, process_set)]

    return operation("broadcast", send, backward, [tensor], [tensor.shape], name, process_set)[0]


@as_is
def alltoall(tensor, splits=None, name=None, ignore_name_scope=False, process_set=WORLD):
    """Send rows to every rank, `splits[r]` of them to rank r; equal parts without `splits`.

    Returns:
        The rows received, in the order of ranks; with `splits` also how many came from each rank (int32).
    """
    tensor = dense(tensor)
    given = [] if splits is None else [dense(splits)]

    def exchange(name, array, *splits):
        size = process_set.size()
        if not splits and array.ndim and array.shape[0] % size == 0:
            splits = [np.full(size, array.shape[0] // size, np.int32)]
        # What does not divide goes on without splits, to be refused where all else is.
        return list(arrays.alltoall(array, *splits, name=name, process_set=process_set))

    def backward(results, gradients, name):
        return [alltoall(gradients[0], results[1], name, process_set=process_set)[0]]

    dtypes = [tensor.dtype, tf.int32]
    shapes = [any_rows(tensor), [None]]
    output, received = operation("alltoall", exchange, backward, [tensor], shapes, name, process_set, dtypes, given)
    return output if splits is None else (output, received)


@as_is
def reducescatter(
    tensor,
    device_dense="",
    compression=Compression.none,
    op=Average,
    name=None,
    process_set=WORLD,
    ignore_name_scope=False,
    prescale_factor=1.0,
    postscale_factor=1.0,
):
    """Reduce a tensor and keep this rank's rows; the first ranks get one more where they do not divide."""

    def backward(results, gradients, name):
        scale = prescale_factor * postscale_factor * (process_set.size() if op == Sum else 1)
        return [allgather(gradients[0] * tf.cast(scale, gradients[0].dtype), name, process_set=process_set)]

    def scatter(name, array):
        return [arrays.reducescatter(array, name, op, prescale_factor, postscale_factor, process_set)]

    packed, context = compression.compress(dense(tensor))
    scattered = operation("reducescatter", scatter, backward, [packed], [any_rows(packed)], name, process_set)[0]
    return compression.decompress(scattered, context)


@as_is
@parameters(
    "tensors device_dense compression op process_set prescale_factor postscale_factor name ignore_name_scope",
    reducescatter,
)
def grouped_reducescatter(tensors, name=None, **options):
    """`reducescatter` of each of `tensors`, with its options; a list."""
    return _each(reducescatter, tensors, name, **options)


def _each(collective, tensors, name, **options):
    return [collective(tensor, name=name and f"{name}.{i}", **options) for i, tensor in enumerate(tensors)]


@as_is
def join():
    """Announce that this rank has no more data, and wait for the others; the last rank to join (an int32 tensor)."""
    return call(lambda: [np.int32(arrays.join())], [], [tf.int32])[0]


@as_is
def barrier(process_set=WORLD):
    """Wait until all ranks are here."""
    call(lambda: [arrays.barrier(process_set=process_set) or np.int32(0)], [], [tf.int32])

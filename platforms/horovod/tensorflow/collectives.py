"""Horovod's collectives on TensorFlow's tensors, with gradients: eagerly, inside tf.function, and in a Session.

Names, arguments and gradients are those of Horovod 0.28. The arguments that place operations on devices and
`ignore_name_scope` are taken and have no effect: the ranks meet in main memory.

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
from ..compression import choices
from ..core import Adasum, Average, CollectiveError, NotInitialized, Sum, job, rank, reduction, sets
from ..core import global_process_set as WORLD
from ..signature import SCALES, SET, signed

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
__all__ = "Compression allgather allreduce alltoall barrier broadcast grouped_allgather grouped_allreduce".split()
__all__ += "grouped_reducescatter join reducescatter".split()
DEVICES, SCOPE = "device_dense='', device_sparse=''", f"name=None, ignore_name_scope=False, {SET}"

Compression = choices(
    lambda tensor: tensor.dtype.is_floating and tensor.dtype.size > 2, tf.cast, fp16=tf.float16, bf16=tf.bfloat16
)
# TensorFlow would rewrite our functions wherever a tf.function calls them, and run them more slowly.
as_is = tf.autograph.experimental.do_not_convert
dense = tf.convert_to_tensor  # of a tensor, a variable (also Keras's), IndexedSlices, or what can be made one


def spelled(text):
    """A decorator for a function that Horovod has with the parameters of `text`."""
    return lambda function: as_is(signed(text, none=Compression.none)(as_is(function)))


class FailedPreconditionError(CollectiveError, tf.errors.FailedPreconditionError):
    """What Horovod raises for TensorFlow where ranks disagree or `init()` was not called."""

    def __init__(self, error):
        tf.errors.FailedPreconditionError.__init__(self, None, None, str(error))


def check_order():
    """NotImplementedError for a graph that XLA compiles or tf.data runs: its collectives have no order."""
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


def calls_of(graph):
    """[(operation, its effects)] of the collectives in this branch of a graph where TensorFlow keeps no order."""
    if not hasattr(graph, "_platforms_horovod"):
        graph._platforms_horovod = collections.defaultdict(list)
    return graph._platforms_horovod[graph._get_control_flow_context()]


def _effects(tensors, calls):
    """The feeds, and what takes or changes something, on which tensors depend."""
    ours, found, seen, todo = {operation for operation, _ in calls}, set(), set(), [tensor.op for tensor in tensors]
    while todo:
        operation = todo.pop()
        if operation not in seen:
            seen.add(operation)
            todo += [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
            takes = operation.type.startswith("Placeholder") or operation.op_def.is_stateful
            if takes and operation.type not in HARMLESS and operation not in ours:
                found.add(operation)
    return found


@as_is
def call(function, inputs, dtypes):
    """Call `function` on `inputs` as NumPy arrays; its results as tensors of `dtypes`, without static shapes.

    In a tf.function it becomes a stateful operation. TensorFlow runs those one after another as the program has them,
    hence in the same order on all ranks, and makes a FailedPreconditionError an InvalidArgumentError.
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
    effects = set() if isinstance(graph, FuncGraph) else _effects(inputs, calls)
    before = (operation for operation, theirs in reversed(calls) if theirs <= effects)
    with tf.control_dependencies(list(itertools.islice(before, 1))):
        results = list(tf.numpy_function(on_arrays, inputs, dtypes))
    calls.append((results[0].op, effects))
    return results


@as_is
def operation(kind, function, backward, tensors, shapes, name, process_set, dtypes=None, options=()):
    """A collective as `call(function, [*tensors, *options], dtypes)`, with gradients for `tensors`.

    Args:
        function: takes the name and the arrays.
        backward: takes the results, their gradients, and a name for each kind of collective in it; returns gradients.
        shapes, dtypes: of the results.
        name: a str, None (then collectives of a kind are numbered), or the name that a `backward` was given.
    """
    given = isinstance(name, tf.Tensor)
    # A Session runs in any order what does not wait for each other: then the same number would not be the same call.
    fixed = f"{kind}.{len(calls_of(tf.compat.v1.get_default_graph()))}" if in_session() else None

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


@spelled(
    f"tensors, average=None, {DEVICES}, compression=none, op=None, {SCALES}, {SET}, ignore_name_scope=False, name=None"
)
def grouped_allreduce(tensors, average, compression, op, prescale_factor, postscale_factor, process_set, name, **_):
    """Reduce several tensors as one operation; a list in the order of `tensors`."""
    op, scales, results = reduction(op, average), (prescale_factor, postscale_factor), {}
    for i, tensor in enumerate(tensors):
        if isinstance(tensor, tf.IndexedSlices):
            results[i] = gather_slices(tensor, op, scales, name and f"{name}.{i}", process_set)
    plain = [i for i in range(len(tensors)) if i not in results]
    inputs = [dense(tensors[i]) for i in plain]
    results.update(zip(plain, reduce_dense(inputs, name, op, scales, process_set, compression)))
    return [results[i] for i in range(len(tensors))]


@spelled(
    f"tensor, average=None, {DEVICES}, compression=none, op=None, {SCALES}, name=None, {SET}, ignore_name_scope=False"
)
def allreduce(tensor, **options):
    """Reduce a tensor of the same shape on all ranks; IndexedSlices are gathered, and reduced where they are used.

    FailedPreconditionError, which is a HorovodInternalError, too, where the ranks disagree.
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


@spelled(f"tensor, {SCOPE}")
def allgather(tensor, name, process_set, **_):
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


@spelled(f"tensors, {SCOPE}")
def grouped_allgather(tensors, **options):
    """`allgather` of each of `tensors`; a list."""
    return _each(allgather, tensors, **options)


@spelled(f"tensor, root_rank, {SCOPE}")
def broadcast(tensor, root_rank, name, process_set, **_):
    """The tensor of rank `root_rank` (a rank of the whole job) on every rank."""
    tensor = dense(tensor)

    def backward(results, gradients, name):
        total = allreduce(gradients[0], op=Average, process_set=process_set, name=name)
        with tf.control_dependencies([total]):  # a Session would leave it out where its values are not used
            return [total if rank() == root_rank else tf.zeros_like(total)]

    def send(name, array):
        return [arrays.broadcast(array, root_rank, name, process_set)]

    return operation("broadcast", send, backward, [tensor], [tensor.shape], name, process_set)[0]


@spelled(f"tensor, splits=None, {SCOPE}")
def alltoall(tensor, splits, name, process_set, **_):
    """Send `splits[r]` rows to rank r, equal parts without; the rows received, in the order of ranks.

    With `splits` also how many came from each rank (int32).
    """
    tensor, given = dense(tensor), [] if splits is None else [dense(splits)]

    def exchange(name, array, *splits):
        size = process_set.size()
        if not splits and array.ndim and array.shape[0] % size == 0:
            splits = [np.full(size, array.shape[0] // size, np.int32)]
        # What does not divide goes on without splits, to be refused where all else is.
        return list(arrays.alltoall(array, *splits, name=name, process_set=process_set))

    def backward(results, gradients, name):
        return [alltoall(gradients[0], results[1], name, process_set=process_set)[0]]

    dtypes, shapes = [tensor.dtype, tf.int32], [any_rows(tensor), [None]]
    output, received = operation("alltoall", exchange, backward, [tensor], shapes, name, process_set, dtypes, given)
    return output if splits is None else (output, received)


@spelled(f"tensor, device_dense='', compression=none, op=Average, name=None, {SET}, ignore_name_scope=False, {SCALES}")
def reducescatter(tensor, compression, op, name, process_set, prescale_factor, postscale_factor, **_):
    """Reduce a tensor and keep this rank's rows; the first ranks get one more where they do not divide."""

    def backward(results, gradients, name):
        scale = prescale_factor * postscale_factor * (process_set.size() if op == Sum else 1)
        return [allgather(gradients[0] * tf.cast(scale, gradients[0].dtype), name, process_set=process_set)]

    def scatter(name, array):
        scales = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
        return [arrays.reducescatter(array, name, op, process_set, **scales)]

    packed, context = compression.compress(dense(tensor))
    scattered = operation("reducescatter", scatter, backward, [packed], [any_rows(packed)], name, process_set)[0]
    return compression.decompress(scattered, context)


@spelled(f"tensors, device_dense='', compression=none, op=Average, {SET}, {SCALES}, name=None, ignore_name_scope=False")
def grouped_reducescatter(tensors, **options):
    """`reducescatter` of each of `tensors`, with its options; a list."""
    return _each(reducescatter, tensors, **options)


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

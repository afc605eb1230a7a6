"""Horovod's collectives on TensorFlow's tensors, with gradients, eagerly and inside tf.function.

Names, arguments and gradients are those of Horovod 0.28 (https://horovod.readthedocs.io/en/stable/api.html). The
arguments that place operations on devices (`device_dense`, `device_sparse`) and `ignore_name_scope` are taken
and have no effect: the ranks meet in main memory.
"""

import warnings

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from .. import arrays
from ..core import Adasum, Average, Sum, global_process_set, rank
from .compression import Compression

NO_XLA = (
    "helpers.hvd was called in code that XLA compiles (jit_compile=True), where no rank can meet the others: XLA "
    "cannot call Python. Nothing was sent. Compile the model with `model.compile(..., jit_compile=False)`, or "
    "leave jit_compile out of the tf.function that calls hvd"
)


# TensorFlow would rewrite our functions wherever a tf.function calls them, and run them more slowly.
as_is = tf.autograph.experimental.do_not_convert


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
        NotImplementedError: the code is being compiled by XLA.
    """
    if tf.executing_eagerly():
        results = function(*[np.asarray(tensor.numpy()) for tensor in inputs])
        return [tf.convert_to_tensor(result, dtype) for result, dtype in zip(results, dtypes)]
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise NotImplementedError(NO_XLA)

    def in_graph(*arrays):
        return [np.asarray(result, dtype.as_numpy_dtype) for result, dtype in zip(function(*arrays), dtypes)]

    return list(tf.numpy_function(in_graph, inputs, dtypes))


def dense(tensor):
    """A tensor of a tensor, a variable (also Keras's), IndexedSlices, or what can be made one."""
    return tf.convert_to_tensor(tensor)


def reduction(average, op):
    """The op that the arguments `average` (deprecated) and `op` ask for."""
    if op is not None:
        if average is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        return op
    if average is not None:
        warnings.warn("average= is deprecated; use op=hvd.Average or op=hvd.Sum", DeprecationWarning, stacklevel=3)
        return Average if average else Sum
    return Average


@as_is
def allreduce(
    tensor, average=None, device_dense="", device_sparse="", compression=Compression.none, op=None,
    prescale_factor=1.0, postscale_factor=1.0, name=None, process_set=global_process_set, ignore_name_scope=False,
):  # fmt: skip
    """Reduce a tensor of the same shape on all ranks; IndexedSlices are gathered, and reduced where they are used.

    Raises:
        NotImplementedError: `op` or factors that IndexedSlices cannot have.
        HorovodInternalError: the ranks disagree (inside a tf.function TensorFlow wraps it in an UnknownError).
    """
    (result,) = grouped_allreduce(
        [tensor], average, compression=compression, op=op, prescale_factor=prescale_factor,
        postscale_factor=postscale_factor, process_set=process_set, name=name, _grouped=False,
    )  # fmt: skip
    return result


@as_is
def grouped_allreduce(
    tensors, average=None, device_dense="", device_sparse="", compression=Compression.none, op=None,
    prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set, ignore_name_scope=False, name=None,
    _grouped=True,
):  # fmt: skip
    """Reduce several tensors as one operation; a list in the order of `tensors`. Otherwise as `allreduce`."""
    op = reduction(average, op)
    tensors = [tensor if isinstance(tensor, tf.IndexedSlices) else dense(tensor) for tensor in tensors]
    results = list(tensors)
    plain = [i for i, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    for i, tensor in enumerate(tensors):
        if i not in plain:
            own = name and (f"{name}.{i}" if _grouped else name)
            results[i] = gather_slices(tensor, op, prescale_factor, postscale_factor, own, process_set)
    if plain:
        packed, contexts = zip(*[compression.compress(tensors[i]) for i in plain])
        names = None if name is None else ([name] if not _grouped else name)
        reduced = reduce_dense(list(packed), names, op, prescale_factor, postscale_factor, process_set, _grouped)
        for i, tensor, context in zip(plain, reduced, contexts):
            results[i] = compression.decompress(tensor, context)
    return results


@as_is
def reduce_dense(tensors, names, op, prescale_factor, postscale_factor, process_set, grouped):
    """Reduce dense tensors in one call from TensorFlow: as a group called `names`, or each under its own name."""
    options = dict(op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor, process_set=process_set)

    def meet(*inputs):
        if grouped:
            return arrays.grouped_allreduce([np.asarray(array) for array in inputs], name=names, **options)
        own = names or [None] * len(inputs)
        handles = [arrays.allreduce_async(np.asarray(a), name=own[i], **options) for i, a in enumerate(inputs)]
        return [arrays.synchronize(handle) for handle in handles]

    @tf.custom_gradient
    def forward(*inputs):
        def backward(*upstream):
            # No names: the forward pass may use them again before this one is over.
            back = [dense(gradient) for gradient in upstream]
            back = reduce_dense(back, None, op, prescale_factor, postscale_factor, process_set, grouped)
            return back if len(back) > 1 else back[0]

        outputs = call(meet, list(inputs), [tensor.dtype for tensor in inputs])
        for output, tensor in zip(outputs, inputs):
            output.set_shape(tensor.shape)
        return (outputs if len(outputs) > 1 else outputs[0]), backward

    outputs = forward(*tensors)
    return list(outputs) if len(tensors) > 1 else [outputs]


@as_is
def gather_slices(slices, op=Average, prescale_factor=1.0, postscale_factor=1.0, name=None, process_set=None):
    """All ranks' slices one after another; for Average divided by the number of ranks."""
    process_set = process_set or global_process_set
    if op == Adasum:
        raise NotImplementedError(
            "The Adasum reduction does not currently support sparse tensors. As a workaround please pass "
            "sparse_as_dense=True to DistributedOptimizer"
        )
    if op not in (Sum, Average):
        raise NotImplementedError("Only Sum and Average ops are supported with tf.IndexedSlices")
    if prescale_factor != 1.0 or postscale_factor != 1.0:
        raise NotImplementedError("Pre/postscale_factor are not supported with tf.IndexedSlices")
    values = allgather(slices.values, name=name and f"{name}.values", process_set=process_set)
    indices = allgather(slices.indices, name=name and f"{name}.indices", process_set=process_set)
    if op == Average:
        values = values / tf.cast(process_set.size(), values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


@as_is
def allgather(tensor, name=None, ignore_name_scope=False, process_set=global_process_set):
    """All ranks' tensors, concatenated along the first dimension, which alone may differ between ranks."""

    @tf.custom_gradient
    def forward(tensor):
        def backward(upstream):
            total = allreduce(upstream, op=Average, process_set=process_set)
            rows = allgather(tf.shape(tensor, tf.int64)[:1], process_set=process_set)
            before = tf.reduce_sum(rows[: process_set.rank()])
            return total[before : before + rows[process_set.rank()]]

        def meet(array):
            return [arrays.allgather(np.asarray(array), name=name, process_set=process_set)]

        (output,) = call(meet, [tensor], [tensor.dtype])
        return _shaped_but_for_rows(output, tensor), backward

    return forward(dense(tensor))


@as_is
def grouped_allgather(tensors, name=None, ignore_name_scope=False, process_set=global_process_set):
    """`allgather` of each of `tensors`; a list."""
    names = [name and f"{name}.{i}" for i in range(len(tensors))]
    return [allgather(tensor, own, process_set=process_set) for tensor, own in zip(tensors, names)]


@as_is
def broadcast(tensor, root_rank, name=None, ignore_name_scope=False, process_set=global_process_set):
    """The tensor of rank `root_rank` (a rank of the whole job) on every rank."""

    @tf.custom_gradient
    def forward(tensor):
        def backward(upstream):
            total = allreduce(upstream, op=Average, process_set=process_set)
            return total if rank() == root_rank else tf.zeros_like(total)

        def meet(array):
            return [arrays.broadcast(np.asarray(array), root_rank, name=name, process_set=process_set)]

        (output,) = call(meet, [tensor], [tensor.dtype])
        output.set_shape(tensor.shape)
        return output, backward

    return forward(dense(tensor))


@as_is
def alltoall(tensor, splits=None, name=None, ignore_name_scope=False, process_set=global_process_set):
    """Send rows to every rank, `splits[r]` of them to rank r; equal parts without `splits`.

    Returns:
        The rows received, in the order of ranks; with `splits` also how many came from each rank (int32).
    """
    given = [] if splits is None else [tf.cast(dense(splits), tf.int32)]

    def meet(array, *rest):
        array = np.asarray(array)
        size = process_set.size()
        if not rest and array.ndim and array.shape[0] % size == 0:
            rest = [np.full(size, array.shape[0] // size, np.int32)]
        # What does not divide goes on without splits, to be refused where all else is.
        return list(arrays.alltoall(array, *rest, name=name, process_set=process_set))

    @tf.custom_gradient
    def forward(tensor):
        output, received = call(meet, [tensor, *given], [tensor.dtype, tf.int32])

        def backward(upstream, _=None):
            return alltoall(upstream, received, process_set=process_set)[0]

        received.set_shape([None])
        return (_shaped_but_for_rows(output, tensor), tf.stop_gradient(received)), backward

    output, received = forward(dense(tensor))
    return output if splits is None else (output, received)


@as_is
def reducescatter(
    tensor, device_dense="", compression=Compression.none, op=Average, name=None, process_set=global_process_set,
    ignore_name_scope=False, prescale_factor=1.0, postscale_factor=1.0,
):  # fmt: skip
    """Reduce a tensor and keep this rank's rows; the first ranks get one more where they do not divide."""
    factors = dict(prescale_factor=prescale_factor, postscale_factor=postscale_factor)

    @tf.custom_gradient
    def forward(tensor):
        def backward(upstream):
            scale = prescale_factor * postscale_factor * (process_set.size() if op == Sum else 1)
            return allgather(upstream * tf.cast(scale, upstream.dtype), process_set=process_set)

        def meet(array):
            return [arrays.reducescatter(np.asarray(array), name=name, op=op, process_set=process_set, **factors)]

        (output,) = call(meet, [tensor], [tensor.dtype])
        return _shaped_but_for_rows(output, tensor), backward

    packed, context = compression.compress(dense(tensor))
    return compression.decompress(forward(packed), context)


@as_is
def grouped_reducescatter(
    tensors, device_dense="", compression=Compression.none, op=Average, process_set=global_process_set,
    prescale_factor=1.0, postscale_factor=1.0, name=None,
):  # fmt: skip
    """`reducescatter` of each of `tensors`; a list."""
    names = [name and f"{name}.{i}" for i in range(len(tensors))]
    return [
        reducescatter(
            tensor, compression=compression, op=op, name=own, process_set=process_set,
            prescale_factor=prescale_factor, postscale_factor=postscale_factor,
        )
        for tensor, own in zip(tensors, names)
    ]  # fmt: skip


@as_is
def join():
    """Announce that this rank has no more data, and wait for the others; the last rank to join (an int32 tensor)."""
    return call(lambda: [np.int32(arrays.join())], [], [tf.int32])[0]


@as_is
def barrier(process_set=global_process_set):
    """Wait until all ranks are here."""
    call(lambda: [arrays.barrier(process_set=process_set) or np.int32(0)], [], [tf.int32])


def _shaped_but_for_rows(output, tensor):
    """`output` with the static shape of `tensor`, except for the first dimension."""
    if tensor.shape.rank:
        output.set_shape([None, *tensor.shape[1:]])
    return output

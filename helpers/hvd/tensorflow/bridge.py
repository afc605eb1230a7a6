"""From TensorFlow's tensors to NumPy arrays, on which the ranks meet, and back; eagerly and inside tf.function."""

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

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

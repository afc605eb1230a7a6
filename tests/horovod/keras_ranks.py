"""What ranks of tests/horovod/test_hvd_keras.py run, in the environment of `make keras`, where there is no pytest.

Each function gives what the test compares, mostly the largest difference to plain Keras on the global batch in the same
process. Everything with TensorFlow in it is imported inside, so that the tests can import this module.
"""

import os

import numpy as np

BATCHES, GLOBAL_BATCH = 6, 24


def in_one_start(names, folder):
    """Call the functions of these names one after the other: {name: what it gave, or the text of its error}."""
    import traceback

    import tensorflow as tf

    import platforms.horovod.keras as hvd

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.get_logger().setLevel("ERROR")
    hvd.init()
    os.chdir(folder)
    given = {}
    for name in names:
        compute_in("float32")
        try:
            given[name] = globals()[name]()
        except Exception:
            given[name] = traceback.format_exc()
    hvd.shutdown()
    return given


def compute_in(dtype):
    import keras

    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)


def network(seed, embedding=False, batch_norm=None):
    import keras

    keras.utils.set_random_seed(seed)
    first = [keras.Input((6,), dtype="int32"), keras.layers.Embedding(20, 4), keras.layers.Flatten()]
    layers = [*(first if embedding else [keras.Input((6,))]), keras.layers.Dense(8, "tanh")]
    return keras.Sequential([*layers, *([batch_norm()] if batch_norm else []), keras.layers.Dense(3)])


def data(embedding=False):
    """Inputs and targets of BATCHES global batches; the tokens repeat within a batch."""
    random = np.random.default_rng(0)
    count = BATCHES * GLOBAL_BATCH
    inputs = random.integers(20, size=(count, 6)) if embedding else random.normal(size=(count, 6))
    return inputs, random.normal(size=(count, 3))


def part(array):
    """This rank's part of each global batch."""
    import platforms.horovod.keras as hvd

    return array.reshape(BATCHES, hvd.size(), -1, *array.shape[1:])[:, hvd.rank()].reshape(-1, *array.shape[1:])


def fit(model, optimizer, inputs, targets, batch, epochs=2, callbacks=()):
    import keras

    model.compile(optimizer, keras.losses.MeanSquaredError(), jit_compile=False)
    history = model.fit(inputs, targets, batch, epochs, shuffle=False, verbose=0, callbacks=list(callbacks))
    return history.history["loss"]


def difference(model, other):
    pairs = zip(model.get_weights(), other.get_weights(), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def fitted(optimizer, embedding=False, passes=1, floatx="float64", batch_norm=(None, None), **options):
    """(difference of weights, of losses) of a DistributedOptimizer and of plain Keras on the global batch."""
    import platforms.horovod.keras as hvd

    compute_in(floatx)
    inputs, targets = data(embedding)
    shared, alone = network(hvd.rank(), embedding, batch_norm[0]), network(0, embedding, batch_norm[1])
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    wrapped = hvd.DistributedOptimizer(optimizer(), backward_passes_per_step=passes, **options)
    batch = GLOBAL_BATCH // hvd.size() // passes
    losses = fit(shared, wrapped, part(inputs), part(targets), batch, callbacks=callbacks)
    expected = fit(alone, optimizer(), inputs, targets, GLOBAL_BATCH)
    return difference(shared, alone), float(np.abs(np.subtract(losses, expected)).max())


def momentum():
    import keras

    return keras.optimizers.SGD(0.1, momentum=0.9)


def adam():
    import keras

    return keras.optimizers.Adam(0.01)


def fit_float64():
    import keras

    weights = network(0).trainable_weights
    decay = keras.optimizers.schedules.CosineDecay(0.1, 12)
    # Keras's Adam squares the rows of a sparse gradient one by one, also those of one token, so that dense and sparse
    # gradients train differently, with and without us; momentum is linear.
    passes = dict(average_aggregated_gradients=True, sparse_as_dense=True)
    return {
        "momentum, lists, batch norm": fitted(
            momentum, groups=[weights[:1], weights[2:]], batch_norm=(_synchronized, keras.layers.BatchNormalization)
        ),
        "adam, clipped, groups": fitted(lambda: keras.optimizers.AdamW(0.01, global_clipnorm=0.5), groups=2),
        "schedule, mean of weights, factor": fitted(
            lambda: keras.optimizers.SGD(decay, use_ema=True, ema_overwrite_frequency=2), gradient_predivide_factor=2.0
        ),
        "embedding, adam": fitted(adam, embedding=True),
        "passes, adam, schedule": fitted(lambda: keras.optimizers.Adam(decay), passes=3, **passes),
        "passes, embedding": fitted(momentum, embedding=True, passes=2, **passes),
    }


def _synchronized():
    import platforms.horovod.tensorflow as hvd

    return hvd.SyncBatchNormalization()


def tape_loops():
    """Loops with DistributedGradientTape, eagerly and in a tf.function: {case: difference}; gradients of a dict."""
    cases = {"eager": {}, "function": {}, "embedding": {"embedding": True}}
    cases["embedding, dense"] = {"embedding": True, "sparse_as_dense": True}
    return {name: _tape_loop(eager=name == "eager", **options) for name, options in cases.items()}


def _tape_loop(eager, embedding=False, **options):
    import tensorflow as tf

    import platforms.horovod.tensorflow as hvd

    compute_in("float64")
    shared, alone = network(hvd.rank(), embedding), network(0, embedding)
    mine, its = (momentum(), momentum()) if options else (adam(), adam())

    def step(model, optimizer, inputs, targets, distributed):
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(tf.square(model(inputs, training=True) - targets))
        tape = hvd.DistributedGradientTape(tape, **options) if distributed else tape
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    mine.build(shared.trainable_variables)
    hvd.broadcast_variables(shared.weights, root_rank=0)
    hvd.broadcast_variables(mine.variables, root_rank=0)
    shared_step, alone_step = (step, step) if eager else (tf.function(step), tf.function(step))
    batches = [array.reshape(BATCHES, -1, *array.shape[1:]) for array in data(embedding)]
    parts = [part(array).reshape(BATCHES, -1, *array.shape[1:]) for array in data(embedding)]
    for i in range(BATCHES):
        shared_step(shared, mine, tf.constant(parts[0][i]), tf.constant(parts[1][i]), True)
        alone_step(alone, its, tf.constant(batches[0][i]), tf.constant(batches[1][i]), False)
    return difference(shared, alone)


def callbacks():
    """(per rank) what the callbacks did."""
    import keras

    import platforms.horovod.keras as hvd

    inputs, targets = data()
    model = network(hvd.rank())
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.08))
    own, rates = [], []
    record = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: own.append(logs["loss"]),
        on_train_batch_end=lambda batch, logs: rates.append(float(optimizer.learning_rate)),
    )
    chosen = [
        record,
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(0.08, warmup_epochs=2),
        hvd.callbacks.LearningRateScheduleCallback(0.08, 0.5, start_epoch=2),
    ]
    batch = GLOBAL_BATCH // hvd.size()
    losses = fit(model, optimizer, part(inputs), part(targets), batch, 4, chosen)
    return own, losses, rates, optimizer.learning_rate.numpy().item()


def saved_and_loaded():
    """Differences to a run that never stopped: loaded plainly, and loaded by hvd.load_model."""
    import keras

    import platforms.horovod.keras as hvd

    compute_in("float64")
    inputs, targets = data()
    batch = GLOBAL_BATCH // hvd.size()
    model = network(0)
    fit(model, hvd.DistributedOptimizer(adam()), part(inputs), part(targets), batch)
    if hvd.rank() == 0:
        model.save("model.keras")
    hvd.barrier()
    plain, loaded = keras.models.load_model("model.keras"), hvd.load_model("model.keras")
    kinds = [type(each.optimizer) is keras.optimizers.Adam for each in (plain, loaded)]
    for each, one in ((model, False), (loaded, False), (plain, True)):
        take, size = (inputs, GLOBAL_BATCH) if one else (part(inputs), batch)
        each.fit(take, targets if one else part(targets), size, 1, shuffle=False, verbose=0)
    again = hvd.DistributedOptimizer(plain.optimizer)  # a built optimizer keeps its state
    return difference(loaded, model), difference(plain, model), kinds, again.iterations.numpy().item()


def collectives():
    """Results and gradients on this rank, eagerly and in a tf.function: {case: (results, gradients)}."""
    import tensorflow as tf

    import platforms.horovod.tensorflow as hvd

    rank, size = hvd.rank(), hvd.size()
    rows = tf.reshape(tf.range(4.0 * (rank + 1)), (-1, 2))  # 2 rows on rank 0, 4 on rank 1
    same = tf.reshape(tf.range(6.0), (3, 2)) + 10.0 * rank
    splits = [[1, 1], [3, 1]][rank] if size == 2 else [2] * size
    cases = {
        "average": (lambda x: hvd.allreduce(x), same),
        "sum": (lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0, name="s"), same),
        "max": (lambda x: tf.stop_gradient(hvd.allreduce(x, op=hvd.Max)) + x, same),
        "grouped": (lambda x: tf.add_n(hvd.grouped_allreduce([x, 2.0 * x], op=hvd.Sum)), same),
        "fp16": (lambda x: hvd.allreduce(x, compression=hvd.Compression.fp16), same),
        "gather": (lambda x: hvd.allgather(x, name="g"), rows),
        "broadcast": (lambda x: hvd.broadcast(x, 1 % size), same),
        "alltoall": (lambda x: hvd.alltoall(x, splits)[0], rows),
        "scatter": (lambda x: hvd.reducescatter(x, op=hvd.Sum), same),
        "scatter, average": (lambda x: hvd.grouped_reducescatter([x])[0], same),
    }
    given = {}
    for name, (function, x) in cases.items():

        def value_and_gradient(x, function=function):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = function(x)
                total = tf.reduce_sum(y * (rank + 1.0))
            return y, tape.gradient(total, x)

        eager, graph = value_and_gradient(x), tf.function(value_and_gradient)(x)
        given[name] = [tensor.numpy().tolist() for tensor in eager]
        assert [tensor.numpy().tolist() for tensor in graph] == given[name], name
    given["received"] = hvd.alltoall(rows, splits)[1].numpy().tolist()
    for _ in range(1 + hvd.rank()):
        last = hvd.allreduce(tf.constant(4.0), name="uneven").numpy().item()
    given["join"] = last, hvd.join().numpy().item()
    given["objects"] = hvd.allgather_object({"rank": rank}), hvd.broadcast_object({"rank": rank}, 1 % size)
    return given


def overflow():
    """A gradient that overflows on rank 1 only: weight and loss scale afterwards, which the ranks must agree on."""
    import keras
    import tensorflow as tf

    import platforms.horovod.keras as hvd

    weight = keras.Variable([1.0])
    keras.config.set_dtype_policy("mixed_float16")
    try:
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    finally:
        keras.config.set_dtype_policy("float32")
    optimizer.build([weight])
    scale = float(optimizer.dynamic_scale)
    step = tf.function(lambda gradient: optimizer.apply_gradients([(gradient, weight)]))
    step(tf.constant([np.inf if hvd.rank() == 1 else scale]))
    after = weight.numpy().item(), float(optimizer.dynamic_scale) / scale
    step(tf.constant([0.5 * scale * (hvd.rank() + 1)]))
    return *after, weight.numpy().item()


def unordered():
    """What TensorFlow runs in an order of its own: wrong results of a session and of gradients, and a refusal."""
    import tensorflow as tf

    import platforms.horovod.tensorflow as hvd

    def meet(xs):
        return [hvd.allreduce(x, op=hvd.Sum) for x in xs] + [hvd.allgather(x[None]) for x in xs]

    function, wrong = tf.function(meet), []
    for _ in range(10):
        xs = [tf.constant(1.0 + i) for i in range(6)]
        with tf.GradientTape() as tape:
            tape.watch(xs)
            reduced, gathered = function(xs)[:6], function(xs)[6:]
            total = tf.add_n([tf.reduce_sum(y) * 4.0**i for i, y in enumerate(reduced + gathered)])
        found = [float(gradient) for gradient in tape.gradient(total, xs)]
        wrong += [found] if found != [hvd.size() * 4.0**i + 4.0 ** (i + 6) for i in range(6)] else []
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        fed = tf.compat.v1.placeholder(tf.float32)
        hvd.allreduce(fed, name="waits for a feed that the others do not need")
        results = [hvd.allreduce(tf.constant([10.0**i]), op=hvd.Sum) for i in range(6)]
        for _ in range(10):
            found = [result.item() for result in session.run(results[::-1])]
            wrong += [found] if found != [hvd.size() * 10.0**i for i in reversed(range(6))] else []
    try:
        tf.data.Dataset.range(6).map(lambda i: hvd.allreduce(tf.cast(i, tf.float32)))
    except NotImplementedError as error:
        return wrong, str(error)


def errors():
    """The texts of what goes wrong."""
    import tensorflow as tf

    import platforms.horovod.tensorflow as hvd

    def text(function):
        try:
            function()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "no error"

    x = tf.ones([2 + hvd.rank()])
    model, compiled = network(0, embedding=True), network(0)
    passes = hvd.DistributedOptimizer(adam(), backward_passes_per_step=2)
    compiled.compile(hvd.DistributedOptimizer(adam()), "mse", jit_compile=True)
    given = {
        "shapes": text(lambda: hvd.allreduce(x, name="mismatch")),
        "no set": text(lambda: hvd.size_op(7)),
        "shapes in a function": text(tf.function(lambda: hvd.allreduce(x, name="mismatch again"))),
        "slices": text(lambda: fit(model, passes, *data(embedding=True), 8)),
        "xla": text(lambda: compiled.fit(*data(), verbose=0)),
        "twice": text(lambda: hvd.DistributedOptimizer(passes)),
        "op": text(lambda: hvd.DistributedOptimizer(adam(), op=hvd.Sum, gradient_predivide_factor=2.0)),
        "min": text(lambda: hvd.allreduce(tf.IndexedSlices(x, tf.range(2 + hvd.rank())), op=hvd.Min)),
    }
    hvd.shutdown()
    given["uninitialized"] = text(lambda: hvd.allreduce(x))
    hvd.init()
    return {**given, "after all": hvd.allreduce(tf.constant(1.0 + hvd.rank())).numpy().item()}

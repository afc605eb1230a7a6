"""The article's seven steps for TensorFlow, in a graph and a session; two ranks train what one process trains."""

import sys

import numpy as np
import tensorflow.compat.v1 as tf

import perseus.tensorflow.horovod as hvd  # 1

tf.disable_v2_behavior()
hvd.init()  # 2
BATCH, STEPS = 8, 20


def model(distributed):
    x, y = tf.placeholder(tf.float32, [None, 6]), tf.placeholder(tf.float32, [None, 3])
    initializer = tf.random_uniform_initializer(-0.5, 0.5, seed=hvd.rank() if distributed else 0)
    w, v = tf.get_variable("w", [6, 8], initializer=initializer), tf.get_variable("v", [8, 3], initializer=initializer)
    loss = tf.reduce_mean(tf.square(tf.matmul(tf.tanh(tf.matmul(x, w)), v) - y))
    # Horovod: scale learning rate by the number of workers.
    optimizer = tf.train.MomentumOptimizer(learning_rate=0.001 * hvd.size(), momentum=0.9)  # 3
    if distributed:
        # Horovod: add Horovod Distributed Optimizer.
        optimizer = hvd.DistributedOptimizer(optimizer)  # 4
    train = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
    mean = hvd.allreduce(loss) if distributed else loss
    return x, y, w, v, loss, train, mean


def run(distributed, checkpoint_dir=None):
    random, losses = np.random.RandomState(1), []
    with tf.Graph().as_default():
        x, y, w, v, loss, train, mean = model(distributed)
        hooks = [tf.train.StopAtStepHook(last_step=STEPS)]
        if distributed:
            logging_hook = tf.train.LoggingTensorHook({"loss": loss}, every_n_iter=10)
            # Horovod: BroadcastGlobalVariablesHook broadcasts initial variable states from
            # rank 0 to all other processes.
            bcast_hook = hvd.BroadcastGlobalVariablesHook(0)  # 5
            hooks += [logging_hook, bcast_hook]
        config = tf.ConfigProto()
        config.gpu_options.allow_growth = True
        config.gpu_options.visible_device_list = str(hvd.local_rank())  # 6
        part = slice(hvd.rank() * BATCH, hvd.rank() * BATCH + BATCH) if distributed else slice(None)
        with tf.train.MonitoredTrainingSession(checkpoint_dir=checkpoint_dir, hooks=hooks, config=config) as session:
            while not session.should_stop():
                images = random.randn(BATCH * hvd.size(), 6)[part]
                weights, _, now = session.run([[w, v], train, mean], {x: images, y: np.tanh(images[:, :3])})
                losses.append(now)
    return weights, losses


checkpoint_dir = sys.argv[1] if hvd.rank() == 0 else None  # 7
weights, losses = run(True, checkpoint_dir)
alone, expected = run(False)
every = hvd.allgather_object([each.tobytes() for each in weights])
assert all(each == every[0] for each in every), "the ranks differ"
assert max(np.abs(a - b).max() for a, b in zip(weights, alone)) < 2e-7 and losses[-1] < losses[0]
assert np.abs(np.subtract(losses, expected)).max() < 1e-6
print(f"rank {hvd.rank()} of {hvd.size()} trained as one process\n", end="")

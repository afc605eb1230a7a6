"""Train with a GradientTape and Horovod, as the well-known example does; the digits are made up."""

import argparse
import os

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf


def make_digits(count, seed):
    """Ten patterns with noise in place of a download: images [count, 8, 8, 1] in 0 to 255 and their labels."""
    random = np.random.default_rng(seed)
    patterns, labels = np.random.default_rng(0).random((10, 8, 8, 1)), random.integers(10, size=count)
    return 255 * (0.8 * patterns[labels] + 0.2 * random.random((count, 8, 8, 1))), labels


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--checkpoints", default=".")
args = parser.parse_args()

# Horovod: initialize Horovod.
hvd.init()

# Horovod: pin GPU to be used to process local rank (one GPU per process)
gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

images, labels = make_digits(1024, seed=hvd.rank())
dataset = tf.data.Dataset.from_tensor_slices((tf.cast(images / 255.0, tf.float32), tf.cast(labels, tf.int64)))
dataset = dataset.repeat().shuffle(1000).batch(32)

mnist_model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(8, [3, 3], activation="relu"),
        tf.keras.layers.MaxPooling2D(pool_size=(2, 2)),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dropout(0.1),
        tf.keras.layers.Dense(32, activation="relu"),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)
loss = tf.losses.SparseCategoricalCrossentropy()

# Horovod: adjust learning rate based on number of GPUs.
opt = tf.optimizers.Adam(0.005 * hvd.size())

checkpoint_dir = os.path.join(args.checkpoints, "checkpoints")
checkpoint = tf.train.Checkpoint(model=mnist_model, optimizer=opt)


@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        probs = mnist_model(images, training=True)
        loss_value = loss(labels, probs)

    # Horovod: add Horovod Distributed GradientTape.
    tape = hvd.DistributedGradientTape(tape)

    grads = tape.gradient(loss_value, mnist_model.trainable_variables)
    opt.apply_gradients(zip(grads, mnist_model.trainable_variables, strict=True))

    # Horovod: broadcast initial variable states from rank 0 to all other processes. Broadcast should be done after
    # the first gradient step to ensure optimizer initialization.
    if first_batch:
        hvd.broadcast_variables(mnist_model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables, root_rank=0)

    return loss_value


# Horovod: adjust number of steps based on number of GPUs.
for batch, (images, labels) in enumerate(dataset.take(args.steps // hvd.size())):
    loss_value = training_step(images, labels, batch == 0)

    if batch % 10 == 0 and hvd.local_rank() == 0:
        print(f"Step #{batch}\tLoss: {loss_value:.6f}")

# Horovod: save checkpoints only on worker 0 to prevent other workers from corrupting them.
if hvd.rank() == 0:
    checkpoint.save(checkpoint_dir)

"""Train with Keras's `model.fit` and Horovod, as the well-known example does; the digits are made up."""

import argparse
import os

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf


def make_digits(count, seed):
    """Ten patterns with noise in place of a download: images [count, 8, 8, 1] in 0 to 255 and their labels."""
    random = np.random.default_rng(seed)
    patterns, labels = np.random.default_rng(0).random((10, 8, 8, 1)), random.integers(10, size=count)
    return 255 * (0.8 * patterns[labels] + 0.2 * random.random((count, 8, 8, 1))), labels


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--samples", type=int, default=1024)
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

images, labels = make_digits(args.samples, seed=hvd.rank())
dataset = tf.data.Dataset.from_tensor_slices((tf.cast(images / 255.0, tf.float32), tf.cast(labels, tf.int64)))
dataset = dataset.repeat().shuffle(1000).batch(32)

model = tf.keras.Sequential(
    [
        tf.keras.layers.Input((8, 8, 1)),
        tf.keras.layers.Conv2D(8, [3, 3], activation="relu"),
        tf.keras.layers.MaxPooling2D(pool_size=(2, 2)),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dropout(0.1),
        tf.keras.layers.Dense(32, activation="relu"),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)

# Horovod: adjust learning rate based on number of GPUs.
scaled_lr = 0.005 * hvd.size()
opt = tf.keras.optimizers.Adam(scaled_lr)

# Horovod: add Horovod DistributedOptimizer.
opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1, average_aggregated_gradients=True)

model.compile(loss=tf.keras.losses.SparseCategoricalCrossentropy(), optimizer=opt, metrics=["accuracy"])

callbacks = [
    # Horovod: broadcast initial variable states from rank 0 to all other processes.
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    # Horovod: average metrics among workers at the end of every epoch.
    hvd.callbacks.MetricAverageCallback(),
    # Horovod: use `lr = 1.0 / size` at the start and reach `lr = 1.0` after the warm-up.
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=1, verbose=1),
]

# Horovod: save checkpoints only on worker 0 to prevent other workers from corrupting them.
if hvd.rank() == 0:
    path = os.path.join(args.checkpoints, "checkpoint-{epoch}.keras")
    callbacks.append(tf.keras.callbacks.ModelCheckpoint(path))

# Horovod: write logs on worker 0.
verbose = 2 if hvd.rank() == 0 else 0

# Horovod: adjust number of steps based on number of GPUs.
model.fit(dataset, steps_per_epoch=160 // hvd.size(), callbacks=callbacks, epochs=args.epochs, verbose=verbose)

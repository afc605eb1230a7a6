"""Train with `model.fit` on all ranks; rank 0 prints, as one line of JSON, how that compares with one process.

.venv-keras/bin/python -m platforms.horovod -np 2 notebooks/scripts/keras_fit.py
"""

import hashlib
import json
import os

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0")  # say less

import keras
import numpy as np

import platforms.horovod.keras as hvd

EPOCHS, LOCAL_BATCH, BATCHES, RATE = 4, 32, 8, 0.01  # the rate is for a batch of LOCAL_BATCH


def digits(count):
    """Images [count, 64] of ten patterns with noise, and their labels."""
    random = np.random.default_rng(0)
    patterns = random.normal(size=(10, 64))
    labels = random.integers(10, size=count)
    return (patterns[labels] + 2 * random.normal(size=(count, 64))).astype("float32"), labels


def network():
    keras.utils.set_random_seed(hvd.rank())  # every rank starts with other weights, rank 0's will count
    return keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, "tanh"), keras.layers.Dense(10)])


def fit(model, optimizer, images, labels, batch, callbacks=()):
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model.fit(images, labels, batch, EPOCHS, shuffle=False, verbose=0, callbacks=callbacks).history["loss"]


def main():
    hvd.init()
    batch, rate = LOCAL_BATCH * hvd.size(), RATE * hvd.size()
    images, labels = digits(batch * BATCHES)
    mine = np.arange(len(labels)).reshape(BATCHES, hvd.size(), -1)[:, hvd.rank()].ravel()  # a part of each batch
    alone, shared = network(), network()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.9))
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    losses = fit(shared, optimizer, images[mine], labels[mine], LOCAL_BATCH, callbacks)
    digests = hvd.allgather_object(hashlib.sha256(b"".join(w.tobytes() for w in shared.get_weights())).hexdigest())
    if hvd.rank() == 0:
        expected = fit(alone, keras.optimizers.SGD(rate, momentum=0.9), images, labels, batch)
        pairs = zip(shared.get_weights(), alone.get_weights(), strict=True)
        facts = {"ranks": hvd.size(), "losses": losses, "losses_of_one_process": expected}
        facts["ranks_equal"] = len(set(digests)) == 1
        facts["difference_to_one_process"] = max(float(abs(a - b).max()) for a, b in pairs)
        print(json.dumps(facts))
    hvd.shutdown()


if __name__ == "__main__":
    main()

"""One gluon network over several ranks, by Horovod's API and by a key-value store; prints one line of JSON."""

import json

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import platforms.horovod.mxnet as hvd

EPOCHS, SAMPLES, BATCH, RATE = 4, 256, 16, 0.0025  # BATCH is that of one rank, RATE the rate for it
hvd.init()
GLOBAL, SGD = BATCH * hvd.size(), {"learning_rate": RATE * hvd.size(), "momentum": 0.9}
random, (y, x) = np.random.RandomState(0), np.mgrid[:12, :12]
labels = random.randint(4, size=SAMPLES)  # which way the waves run in noisy images
images = np.sin([y, x, x + y, x - y])[labels] + 0.3 * random.randn(SAMPLES, 12, 12)
images, labels = mx.nd.array(images[:, None]), mx.nd.array(labels)


def network(seed):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(8, kernel_size=3, activation="tanh"), gluon.nn.AvgPool2D(), gluon.nn.Dense(4))
    mx.random.seed(seed)
    net.initialize(mx.init.Xavier())  # weights are drawn in the first forward, when their shapes are known
    return net, net.collect_params()


def train(net, trainer, first, rows, divisor):
    """Train on `rows` of each global batch from row `first` on; (mean loss of each epoch, all weights)."""
    loss_of, losses = gluon.loss.SoftmaxCrossEntropyLoss(), np.zeros(EPOCHS)
    for epoch in range(EPOCHS):
        for start in range(first, SAMPLES, GLOBAL):
            with autograd.record():
                loss = loss_of(net(images[start : start + rows]), labels[start : start + rows])
            loss.backward()
            trainer.step(divisor)
            losses[epoch] += loss.mean().asscalar() * GLOBAL / SAMPLES
    return losses, np.concatenate([value.data().asnumpy().ravel() for value in net.collect_params().values()])


mine, found = (hvd.rank() * BATCH, BATCH), {"ranks": hvd.size()}

net, params = network(seed=hvd.rank())  # on every rank other weights ...
hvd.broadcast_parameters(params, root_rank=0)  # ... but for this line
horovod = train(net, hvd.DistributedTrainer(params, "sgd", SGD), *mine, divisor=BATCH)

net, params = network(seed=hvd.rank())  # the trainer broadcasts; gradients are summed, so step() divides by all rows
kvstore = train(net, gluon.Trainer(params, "sgd", SGD, kvstore="dist_sync_hvd"), *mine, divisor=GLOBAL)

net, params = network(seed=0)  # whole batches in one process, without communication
_, alone = train(net, gluon.Trainer(params, "sgd", SGD, kvstore=None), 0, GLOBAL, divisor=GLOBAL)

for way, (losses, weights) in {"horovod": horovod, "kvstore": kvstore}.items():
    losses, others = sum(hvd.allgather_object(losses)) / hvd.size(), hvd.allgather_object(weights.tobytes())
    found[way] = {
        "losses": losses.round(4).tolist(),
        "ranks_equal": others.count(others[0]) == hvd.size(),
        "difference_to_one_process": float(abs(weights - alone).max()),
    }
if hvd.rank() == 0:
    print(json.dumps(found))
hvd.shutdown()

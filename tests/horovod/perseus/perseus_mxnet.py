"""The article's steps for MXNet: Horovod's API, the KVStore, and PerseusSyncBatchNorm in gluon and as a symbol."""

import argparse
import os

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import perseus.mxnet as hvd
import perseus.mxnet as perseus_kv

parser = argparse.ArgumentParser()
parser.add_argument("--kv-store", default="dist_sync_perseus")
parser.add_argument("--gc-type", default="2bit")
parser.add_argument("--gc-threshold", type=float, default=0.5)
parser.add_argument("--gpus", default="")
args = parser.parse_args()

hvd.init()
# rank and size
rank = hvd.rank()
num_workers = hvd.size()
local_rank = hvd.local_rank()
# Horovod: pin GPU to local rank
context = mx.gpu(local_rank) if args.gpus else mx.cpu(local_rank)

net = gluon.nn.HybridSequential()
net.add(
    gluon.nn.Conv2D(4, kernel_size=3),
    mx.gluon.contrib.nn.PerseusSyncBatchNorm(comm_scope=0),
    mx.gluon.contrib.nn.PerseusSyncBatchNorm(comm_scope=1),
    gluon.nn.Dense(2),
)
mx.random.seed(rank)
net.initialize(mx.init.Xavier(), ctx=context)
optimizer, optimizer_params = "sgd", {"learning_rate": 0.01 * num_workers}
# Horovod: fetch and broadcast parameters
params = net.collect_params()
if params is not None:
    hvd.broadcast_parameters(params)
opt = mx.optimizer.create(optimizer, **optimizer_params)
# Horovod: create DistributedTrainer, a subclass of gluon.Trainer
trainer = hvd.DistributedTrainer(params, opt)
images = mx.nd.array(np.random.RandomState(rank).randn(8, 3, 6, 6), ctx=context)
for _ in range(3):
    with autograd.record():
        loss = gluon.loss.SoftmaxCrossEntropyLoss()(net(images), mx.nd.zeros((8,), ctx=context))
    loss.backward()
    trainer.step(8)
found = hvd.allgather_object([value.data().asnumpy().tobytes() for value in params.values()])
assert all(each == found[0] for each in found), "the ranks differ"

kv = perseus_kv.create(args.kv_store) if args.kv_store == "dist_sync_perseus" else mx.kvstore.create(args.kv_store)
if args.gc_type != "none":
    kv.set_gradient_compression({"type": args.gc_type, "threshold": args.gc_threshold})
ctx = []
cvd = os.environ["DEVICES"].strip()
if "perseus" in args.kv_store:
    import perseus.mxnet as perseus  # noqa: F401  (as in the article)

    ctx.append(mx.gpu(kv.local_rank) if args.gpus else mx.cpu(kv.local_rank))
kv.init("weight", mx.nd.zeros((3,), ctx=ctx[0]))
kv.push("weight", mx.nd.array([0.75, 0.25, -0.5], ctx=ctx[0]))
total = mx.nd.zeros((3,), ctx=ctx[0])
kv.pull("weight", out=total)
assert total.asnumpy().tolist() == [0.5 * num_workers, 0, -0.5 * num_workers], total
kv.push("weight", mx.nd.array([0, 0.25, 0], ctx=ctx[0]))  # 0.25 was left over, and is sent with this
kv.pull("weight", out=total)
assert total.asnumpy().tolist() == [0, 0.5 * num_workers, 0], total

data = mx.sym.Variable("data")
for comm_scope in 0, 1:
    symbol = mx.sym.contrib.PerseusSyncBatchNorm(data, comm_scope=comm_scope, fix_gamma=False, name="bn")
    bound = symbol.simple_bind(context, data=(2, 1, 2))
    bound.arg_dict["data"][:] = rank
    bound.arg_dict["bn_gamma"][:] = 1
    normal = bound.forward(is_train=True)[0].asnumpy()
    mean = (num_workers - 1) / 2  # all of these ranks are on one host
    expected = (rank - mean) / np.sqrt(np.var(range(num_workers)) + 1e-3)
    assert np.allclose(normal, expected, atol=1e-5), (normal, expected)
print(f"rank {rank} of {num_workers} has taken the steps with {cvd}\n", end="")

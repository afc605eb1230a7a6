"""Caffe on several ranks, and on one process with the global batch; prints one line of JSON.

.venv-caffe/bin/python -m torch.distributed.run --nproc_per_node=2 notebooks/scripts/caffe_solver.py
"""

import json
import os
import tempfile
from pathlib import Path

os.environ.setdefault("GLOG_minloglevel", "2")  # Caffe logs every layer otherwise
import caffe
import numpy as np
from sklearn.datasets import load_digits

import platforms.horovod.caffe as hvd

NET = """
layer { name: "digits" type: "Input" top: "x" top: "y"
        input_param { shape { dim: %d dim: 1 dim: 8 dim: 8 } shape { dim: %d } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "z"
        convolution_param { num_output: 8 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "z" top: "z" }
layer { name: "classes" type: "InnerProduct" bottom: "z" top: "classes"
        inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "classes" bottom: "y" top: "loss" }
"""
SOLVER = 'net: "%s" type: "SGD" base_lr: 0.05 momentum: 0.9 lr_policy: "fixed" random_seed: 1'
BATCH, STEPS = 64, 10  # samples of all ranks together, iterations


def make_solver(batch, folder):
    net, solver = Path(folder, "net.prototxt"), Path(folder, "solver.prototxt")
    net.write_text(NET % (batch, batch))
    solver.write_text(SOLVER % net)
    return caffe.get_solver(str(solver))


def train(solver, rank=0, size=1):
    """One iteration after the other, each on this rank's part of the next global batch; the losses."""
    digits, losses, net = load_digits(), [], solver.net
    for step in range(STEPS):
        mine = slice(step * BATCH + rank, (step + 1) * BATCH, size)
        net.blobs["x"].data[...] = digits.images[mine, None] / 16
        net.blobs["y"].data[...] = digits.target[mine]
        solver.step(1)
        losses.append(float(net.blobs["loss"].data))
    return losses, np.concatenate([blob.data.ravel() for blobs in net.params.values() for blob in blobs])


with tempfile.TemporaryDirectory() as folder:
    alone, expected = train(make_solver(BATCH, folder))
    hvd.init()
    solver = hvd.DistributedSolver(make_solver(BATCH // hvd.size(), folder))
    losses, weights = train(solver, hvd.rank(), hvd.size())
mean, everyone = hvd.allreduce(np.array(losses)), hvd.allgather(weights[None])
facts = {"losses": mean.round(4).tolist(), "losses_of_one_process": np.round(alone, 4).tolist()}
facts |= {"ranks_equal": bool((everyone == everyone[0]).all()), "ranks": hvd.size()}
if hvd.rank() == 0:
    print(json.dumps({**facts, "difference_to_one_process": float(abs(weights - expected).max())}))

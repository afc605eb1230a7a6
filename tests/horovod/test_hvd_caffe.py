"""platforms.horovod.caffe on a stand-in for Caffe's solver; notebooks/scripts/caffe_solver.py has Caffe itself."""

import collections

import numpy as np
import pytest

from helpers import launch


class Blob:
    def __init__(self, data, diff):
        self.data, self.diff = data, diff


class Solver:
    """Does in one iteration what Caffe's does, in the same order; two layers share their first parameter."""

    iter = 0

    def __init__(self, seed):
        draw = np.random.RandomState(seed)
        first, second = (Blob(draw.rand(2, 3).astype("f"), np.zeros((2, 3), "f")) for _ in range(2))
        shared = Blob(first.data[:], first.diff[:])
        self.net = collections.namedtuple("Net", "params")({"one": [first, second], "two": [shared]})
        self.callbacks, self.log, self.seed = [], [], seed
        self.param = collections.namedtuple("Param", "max_iter")(2)

    def add_callback(self, on_start, on_gradients_ready):
        self.callbacks.append(on_gradients_ready)

    def step(self, iterations):
        for _ in range(iterations):
            for blob in self.net.params["one"]:
                blob.diff[...] = 2 * (self.seed + 1)  # of two passes
            for on_gradients_ready in self.callbacks:
                on_gradients_ready()
            self.log.append([float(blob.diff.mean()) for blob in self.net.params["one"]])
            self.iter += 1

    def solve(self):
        self.step(self.param.max_iter - self.iter)

    def snapshot(self):
        self.log.append("snapshot")


def on_a_rank():
    import platforms.horovod.caffe as hvd

    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.DistributedSolver(Solver(0))
    hvd.init()
    solver = hvd.DistributedSolver(Solver(hvd.rank()))
    start = [blob.data.tolist() for blob in solver.net.params["one"]]
    solver.solve()
    solver.snapshot()
    late, smaller = Solver(hvd.rank()), Solver(hvd.rank())
    late.iter = hvd.rank()
    del smaller.net.params["one"][1 if hvd.rank() else 2 :]
    for wrong, words in (
        (solver, "distributed already"),
        (late, r"differ in iteration.*call restore\(\) on all of them"),
        (smaller, r"differ in parameter one\.1: .*none on rank 1"),
    ):
        with pytest.raises(ValueError, match=words):
            hvd.DistributedSolver(wrong)
    hvd.shutdown()
    return start, solver.log


def test_the_order_of_its_solver():
    ranks = launch(on_a_rank, 2, threads=1, timeout=300)
    assert ranks[0][0] == ranks[1][0]  # rank 0's start, though the seeds differ
    for rank, (_, log) in enumerate(ranks):
        # Two passes of 1 on rank 0 and of 2 on rank 1: a mean of 3, also of what two layers share.
        assert log == [[3.0, 3.0]] * 2 + ["snapshot"] * (rank == 0)

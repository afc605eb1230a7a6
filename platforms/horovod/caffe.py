"""Data-parallel training with BVLC Caffe's Python interface: `import platforms.horovod.caffe as hvd`.

    hvd.init()                                       # before the solver is made
    solver = hvd.DistributedSolver(caffe.get_solver("solver.prototxt"))
    solver.step(100)

Caffe need not be patched, since Pycaffe shows the solver's callback between the last backward pass of an iteration and
the update: any Caffe 1.0 with Python 3 will do (`make caffe`). In GPU mode the gradients travel through the host; bind
the device yourself, `caffe.set_device(hvd.local_rank())`. Caffe holds Python's interpreter lock while it computes, so a
rank that died is noticed when a pass ends.
"""

import os

import numpy as np

try:
    import caffe
except ImportError:  # another solver with the same methods works too
    caffe = None

from . import arrays, core
from .arrays import *  # noqa: F403
from .core import *  # noqa: F403
from .core import Average, rank, size


class Compression:
    """How gradients travel: as they are (`none`) or as half-precision numbers (`fp16`)."""

    none, fp16 = None, np.float16


def init(comm=None, process_sets=None):
    """Start hvd and tell Caffe which of how many solvers this one is. Call it in the thread that makes the solver.

    Caffe then does by itself what it does with several GPUs: the data layers of the training net that read a
    database (`Data`, `HDF5Data`) take every size-th record, random seeds differ, and only rank 0 tests, logs and
    snapshots while it trains. Input fed from Python is yours to split.
    """
    core.init(comm, process_sets)
    if caffe is not None:
        caffe.set_solver_count(core.size())
        caffe.set_solver_rank(core.rank())
        caffe.set_multiprocess(True)


def broadcast_parameters(params, root_rank=0):
    """Give every rank, in place, rank `root_rank`'s parameters: `params` of a net, a dict of lists of blobs."""
    for name, blob in _owned(params):
        arrays.FORMS["broadcast_"](blob.data, root_rank, name="caffe.parameter." + name)


class DistributedSolver:
    """A Caffe solver of any type whose gradients are averaged over the ranks before each update.

    Every rank starts from the parameters of rank 0, and the mean over the ranks is reduced once an iteration,
    after its `iter_size` passes; momentum, clipping, regularisation and learning rate come after it, so that all
    ranks do what one process does with the global batch. Keep `batch_size` as that of one rank. The statistics
    of BatchNorm layers stay those of each rank. All else (`net`, `test_nets`, `param`, `iter`, …) is the solver's.

    `solver`: made after `init()`, restored or not. `op`: Average, or Sum when the net's loss is already divided by the
    global batch; Adasum. ValueError where the ranks' nets, solver types or iterations differ.
    """

    def __init__(self, solver, op=Average, compression=Compression.none):
        rank()  # raises before init()
        if caffe is not None and (caffe.solver_count(), caffe.solver_rank()) != (size(), rank()):
            raise ValueError(
                f"Caffe takes this for solver {caffe.solver_rank()} of {caffe.solver_count()}, but it is rank {rank()} "
                f"of {size()}: call platforms.horovod.caffe.init() in this thread, before the solver is made"
            )
        if getattr(solver, "is_distributed", False):
            raise ValueError("this solver is distributed already; its gradients would be reduced twice")
        self._solver, self._op, self._compression = solver, op, compression
        self._owned = _owned(solver.net.params)
        self._start_together()
        solver.is_distributed = True
        solver.add_callback(lambda: None, self.reduce_gradients)

    def __getattr__(self, name):
        if name.startswith("__") or "_solver" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._solver, name)

    def reduce_gradients(self):
        """Reduce the gradients that the net holds now; `step`, `solve` and `apply_update` do it themselves."""
        diffs = [blob.diff for _, blob in self._owned]
        sent = diffs if self._compression is None else [diff.astype(self._compression) for diff in diffs]
        means = arrays.FORMS["grouped_allreduce"](sent, name="caffe.gradients", op=self._op)
        for diff, mean in zip(diffs, means):
            diff[...] = mean

    def apply_update(self):
        """Reduce the gradients of your own forward and backward passes, and update with them."""
        self.reduce_gradients()
        self._solver.apply_update()

    def solve(self, resume_file=None):
        """Train up to `max_iter`; rank 0 also writes the last snapshot and runs the last test."""
        if resume_file:
            self.restore(resume_file)
        if rank() == 0:
            self._solver.solve()
        else:  # Caffe ends the process that calls solve() and is not rank 0
            self._solver.step(max(0, self._solver.param.max_iter - self._solver.iter))

    def snapshot(self):
        """Write the model and the solver's state on rank 0; nothing elsewhere."""
        if rank() == 0:
            self._solver.snapshot()

    def restore(self, file):
        """Go on from a `.solverstate` of rank 0's snapshots. All ranks call it, each can read the file."""
        if not os.path.exists(file):  # Caffe would end the process
            raise FileNotFoundError(f"rank {rank()} finds no solver state {file}")
        self._solver.restore(file)
        self._start_together()

    def _start_together(self):
        """Check that the ranks train the same, and broadcast the parameters."""
        here = {"parameter " + name: blob.data.shape for name, blob in self._owned}
        here.update(type=type(self._solver).__name__, iteration=self._solver.iter)
        for other, there in enumerate(arrays.allgather_object(here, name="caffe.start")):
            for what in {**here, **there}:
                ours, theirs = here.get(what, "none"), there.get(what, "none")
                if ours != theirs:
                    raise ValueError(
                        f"the ranks' solvers differ in {what}: {ours} on rank {rank()}, {theirs} on rank {other}. "
                        "Give all ranks the same solver and net, and call restore() on all of them: the solver's "
                        "history cannot be broadcast, since Caffe does not show it to Python"
                    )
        broadcast_parameters(self._solver.net.params)


def _owned(params):
    """(name, blob) of every parameter, those that layers share once, in an order that is the same on all ranks."""
    found = {}
    for layer, blobs in params.items():
        for index, blob in enumerate(blobs):
            # Layers that share a parameter have blobs of their own over the same memory.
            found.setdefault(blob.diff.ctypes.data, (f"{layer}.{index}", blob))
    return list(found.values())

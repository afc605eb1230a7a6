"""The key-value store `dist_sync_hvd`, for scripts that distribute through `kvstore=...` and know no Horovod.

Importing this module registers it (https://mxnet.apache.org/versions/1.9.1/api/python/docs/api/kvstore), and
the vendor's name `dist_sync_perseus` gives the same store. There is no server: each rank holds a copy, and sums are
computed by allreduce. As with MXNet's own `dist_sync`, gradients are summed, not averaged: Module divides by
the global batch size, and in gluon `trainer.step` gets it.
"""

import functools

import mxnet as mx
from mxnet.kvstore import KVStoreBase

from .. import arrays, core
from .functions import broadcast_parameters
from .mpi_ops import FORMS
from .optimizer import Compression, Reducer, TwoBit

NAMES = ("dist_sync_hvd", "dist_sync_perseus")


def _pairs(key, value):
    """(key, [one array for each of this rank's devices]) for one key or a list of keys."""
    pairs = zip(key, value) if isinstance(key, (list, tuple)) else [(key, value)]
    return [(key, list(value) if isinstance(value, (list, tuple)) else [value]) for key, value in pairs]


class KVStore(KVStoreBase):
    """A store of arrays by key, the same on every rank. Every rank makes the same calls in the same order.

    `priority` of MXNet's interface has no effect. ValueError for a key that init or broadcast did not make.
    """

    def __init__(self):
        core.init()
        self._stored, self._updater, self._reducer = {}, None, Reducer(1.0, core.global_process_set)

    type = "dist_sync_hvd"  # Module looks for "dist" and "_sync" in it
    rank = property(lambda self: core.rank())
    num_workers = property(lambda self: core.size())
    local_rank = property(lambda self: core.local_rank())
    _barrier = staticmethod(arrays.barrier)

    @staticmethod
    def is_capable(capability):
        if capability.lower() != KVStoreBase.OPTIMIZER:
            raise ValueError(f"unknown capability '{capability}'; there is only '{KVStoreBase.OPTIMIZER}'")
        return True

    def init(self, key, value):
        """Store rank 0's value under each key."""
        for name, values in _pairs(key, value):
            self._stored[name] = FORMS["broadcast"](values[0], 0, f"kvstore.init.{name}")

    def push(self, key, value, priority=0):
        """Sum the values over devices and ranks; the sum is stored, or updates what is stored by the optimizer."""
        pairs = _pairs(key, value)
        own = [mx.nd.add_n(*(each.as_in_context(of[0].context) for each in of)) if of[1:] else of[0] for _, of in pairs]
        totals = self._reducer.sums([f"kvstore.push.{name}" for name, _ in pairs], own)
        for (name, _), total in zip(pairs, totals):
            if self._updater:
                self._updater(name, total, self._known(name))
            else:
                self._stored[name] = total

    def pull(self, key, out=None, priority=0, ignore_sparse=True):
        """Copy what is stored under each key to its arrays in `out`."""
        for name, outs in _pairs(key, out):
            for array in outs:
                self._known(name).copyto(array)

    def _known(self, name):
        if name not in self._stored:
            raise ValueError(f"there is no '{name}' in the key-value store; make it by init or broadcast first")
        return self._stored[name]

    def broadcast(self, key, value, out, priority=0):
        """`init`, then `pull` into `out`."""
        self.init(key, value)
        self.pull(key, out)

    def pushpull(self, key, value, out=None, priority=0):
        """`push`, then `pull` into `out`, without it into `value`."""
        self.push(key, value)
        self.pull(key, value if out is None else out)

    def set_optimizer(self, optimizer):
        """Let `push` update what is stored by this optimizer; each rank does it alike."""
        self._updater = mx.optimizer.get_updater(optimizer)

    def set_gradient_compression(self, compression_params):
        """{'type': '2bit', 'threshold': 0.5} as in MXNet, {'type': 'fp16'} or {'type': 'none'}; else ValueError."""
        kind, threshold = compression_params.get("type"), float(compression_params.get("threshold", 0.5))
        if kind not in ("2bit", "fp16", "none"):
            raise ValueError(f"there is no compression of type {kind!r}; give '2bit', 'fp16' or 'none'")
        if not threshold > 0:
            raise ValueError(f"the threshold of the compression is {threshold}; give a number above 0")
        self._reducer.compression = TwoBit(threshold) if kind == "2bit" else getattr(Compression, kind)

    def save_optimizer_states(self, fname, dump_optimizer=False):
        """Write the states of the optimizer to a file."""
        states = self._optimizing().get_states(dump_optimizer)  # before an older file is emptied
        with open(fname, "wb") as file:
            file.write(states)

    def load_optimizer_states(self, fname):
        """Read what save_optimizer_states wrote; only files that you trust, for they are pickles."""
        with open(fname, "rb") as file:
            self._optimizing().set_states(file.read())

    def _optimizing(self):
        if self._updater is None:
            raise ValueError("the key-value store has no optimizer (set_optimizer), so there are no states of one")
        return self._updater


def _with_our_store(trainer_init):
    """What gluon's Trainer does otherwise when it has this store.

    It broadcasts inside its first step, when the first forward and backward are already over, each rank's with
    weights of its own: here as soon as it is made. And it reduces one gradient after the other: here all at once.
    """

    @functools.wraps(trainer_init)
    def __init__(self, *args, **kwargs):
        trainer_init(self, *args, **kwargs)
        store = self._kvstore_params["kvstore"]
        if not (isinstance(store, KVStore) or isinstance(store, str) and store.lower() in NAMES):
            return
        core.init()
        # Updating here, not in the store, allows gradients to be clipped between allreduce_grads() and update().
        if self._kvstore_params["update_on_kvstore"] is None:
            self._kvstore_params["update_on_kvstore"] = False
        self._allreduce_grads = functools.partial(_reduce_at_once, self)
        broadcast_parameters({f"{i:06}": param for i, param in enumerate(self._params)}, prefix="kvstore.trainer.")

    return __init__


def _reduce_at_once(trainer):
    trained = [(i, param) for i, param in enumerate(trainer._params) if param.grad_req != "null"]
    out = [param.list_data() for _, param in trained] if trainer._update_on_kvstore else None
    trainer._kvstore.pushpull([i for i, _ in trained], [param.list_grad() for _, param in trained], out)


def create(name="dist_sync_perseus"):
    """The key-value store of that name: `mx.kv.create`, with the names that are ours among them."""
    return mx.kv.create(name)


for _name in NAMES:
    KVStoreBase.kv_registry[_name] = KVStore
mx.gluon.Trainer.__init__ = _with_our_store(mx.gluon.Trainer.__init__)

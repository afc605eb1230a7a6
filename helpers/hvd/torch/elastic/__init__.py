"""Training that survives the loss of ranks: `@hvd.elastic.run` around a function of a `TorchState`.

    @hvd.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, 90):
            ...
            state.commit()

Names and behaviour as in "Elastic Horovod" of Horovod's documentation.
"""

from functools import partial

from ... import core
from .common import HostUpdateResult, ObjectState, State, run_fn
from .sampler import ElasticSampler
from .state import TorchState, get_handler_registry, set_handler_registry

__all__ = [
    "run", "State", "ObjectState", "TorchState", "ElasticSampler", "HostUpdateResult", "get_handler_registry",
    "set_handler_registry",
]  # fmt: skip


def run(func=None, reset_limit=None):
    """Decorator: `func(state, …)` starts with the state alike on all ranks, and again from there after a reset.

    Collectives outside of `func` have to happen before the first call. `@run(reset_limit=3)` gives up, with a
    RuntimeError, when more resets are needed. See `common.run_fn`.
    """
    if func is None:
        return partial(run, reset_limit=reset_limit)
    return run_fn(func, core.reset, reset_limit)

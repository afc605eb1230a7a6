"""Training that survives the loss of ranks: `@hvd.elastic.run` around a function of a `TorchState`.

    @hvd.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, 90):
            ...
            state.commit()

Names and behaviour as in "Elastic Horovod" of Horovod's documentation, with one difference: after the loss of a rank
torchrun starts all ranks again (`python -m platforms.horovod --min-np`, torchrun --max-restarts), and `run` goes on
from the last commit, which rank 0 has written to a file. After a failure without a loss the ranks meet again.
"""

import copy
import functools
import itertools
import operator
import os
import queue
import random

import torch
from torch.utils.data import Sampler

from .. import core
from .functions import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
from .mpi_ops import rank, size

__all__ = [
    "run",
    "State",
    "ObjectState",
    "TorchState",
    "ElasticSampler",
    "HostUpdateResult",
    "get_handler_registry",
    "set_handler_registry",
]


class HostUpdateResult:
    """What has happened to the hosts; values can be or-ed."""

    no_update, removed, added, mixed = 0, 1, 2, 3


class State:
    """What has to be alike on all ranks and survive the loss of some.

    Args:
        bcast_object: function that returns rank 0's object on every rank.
        get_rank: function that returns the rank of this process.
    """

    def __init__(self, bcast_object, get_rank):
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages = queue.Queue()
        self._last_updated_timestamp = 0
        self._reset_callbacks = []

    def register_reset_callbacks(self, callbacks):
        """Functions to call after every reset, for example to scale the learning rate to the number of ranks."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self):
        """Called when the remaining ranks have met again, before `sync`."""
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp, update_res):
        """Note that hosts have changed: `update_res` is a `HostUpdateResult`; any thread may call it."""
        self._host_messages.put((timestamp, update_res))

    def commit(self):
        """`save()`, then `check_host_updates()`. It copies everything: once in many batches is often enough."""
        self.save()
        _write(self)
        self.check_host_updates()

    def check_host_updates(self):
        """Raise HostsUpdatedInterrupt, on all ranks together, if hosts have changed."""
        before = latest = self._last_updated_timestamp
        updates = HostUpdateResult.no_update
        while not self._host_messages.empty():
            timestamp, update = self._host_messages.get()
            if timestamp > latest:
                latest, updates = timestamp, updates | update
        before, self._last_updated_timestamp, updates = self._agreed((before, latest, updates))
        if self._last_updated_timestamp > before:
            raise core.HostsUpdatedInterrupt(skip_sync=updates == HostUpdateResult.removed)

    def _agreed(self, news):
        return self._bcast_object(news)

    def save(self):
        """Keep a copy of the state in memory."""
        raise NotImplementedError

    def restore(self):
        """Go back to the last copy."""
        raise NotImplementedError

    def sync(self):
        """Take over the state of rank 0."""
        raise NotImplementedError

    def reset(self):
        """Adapt to the new world; nothing by default."""

    def saved(self):
        """What `save()` keeps, to be written to a file; None if it is kept elsewhere."""

    def load_saved(self, saved):
        """Go back to what `saved()` has returned in a process that is gone."""


class ObjectState(State):
    """Plain Python objects, given as keyword arguments, as attributes. They have to be picklable."""

    def __init__(self, bcast_object, get_rank, **kwargs):
        self._saved_state = kwargs
        for name, value in kwargs.items():
            setattr(self, name, value)
        ObjectState.save(self)
        super().__init__(bcast_object=bcast_object, get_rank=get_rank)

    def save(self):
        # Copies, because a list that is appended to after a commit must not change the commit.
        self._saved_state = {name: copy.deepcopy(getattr(self, name)) for name in self._saved_state}

    def restore(self):
        for name, value in self._saved_state.items():
            setattr(self, name, copy.deepcopy(value))

    def saved(self):
        return {"plain": self._saved_state}

    def load_saved(self, saved):
        self._saved_state = saved["plain"]
        self.restore()

    def sync(self):
        if self._saved_state:
            values = self._bcast_object({name: getattr(self, name) for name in self._saved_state})
            for name, value in values.items():
                setattr(self, name, value)
            ObjectState.save(self)


class ElasticSampler(Sampler):
    """Indices of this rank, without those processed before the last `reset()`, for example before a restored commit.

    Put it into the `TorchState`, call `record_batch` after every batch and `set_epoch` at the END of an epoch (at
    its start, an interrupted training would repeat the epoch). The last indices are repeated where the
    number does not divide by the ranks. As in the API reference of horovod.torch.elastic.

    Args:
        dataset: anything with a length, which must not change.
        shuffle: whether to shuffle, by `seed` and the number of the epoch; both must be the same on all ranks.
    """

    def __init__(self, dataset, shuffle=True, seed=0):
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch, self.processed_num = 0, 0
        self.reset()

    def set_epoch(self, epoch):
        """Begin epoch number `epoch`: nothing is processed, and the order is another."""
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx, batch_size):
        """Note that every rank has processed its batch number `batch_idx`, of `batch_size` indices."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self):
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict):
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self):
        """Share out what is left among the ranks there are now."""
        self.num_replicas, self.rank = size(), rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self):
        # Over and over, since there may be fewer indices left than ranks.
        padded = itertools.islice(itertools.cycle(self.remaining_indices), self.total_size)
        return itertools.islice(padded, self.rank, None, self.num_replicas)

    def __len__(self):
        return self.num_samples


class StateHandler:
    """Saves, restores and sends to all ranks what has a `state_dict`; subclass it and register the subclass."""

    def __init__(self, value):
        self.value = value
        self.save()

    def save(self):
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self):
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self):
        self.value.load_state_dict(broadcast_object(self.value.state_dict()))

    def set_value(self, value):
        self.value = value
        self.save()


class ModelStateHandler(StateHandler):
    def sync(self):
        broadcast_parameters(self.value.state_dict(), root_rank=0)


class OptimizerStateHandler(StateHandler):
    def sync(self):
        broadcast_optimizer_state(self.value, root_rank=0)


_LRScheduler = getattr(torch.optim.lr_scheduler, "LRScheduler", torch.optim.lr_scheduler._LRScheduler)  # before torch 2
_handler_registry = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (_LRScheduler, StateHandler),
    (ElasticSampler, StateHandler),
]


def get_handler_registry():
    """Pairs (type, handler class), first come, first served."""
    return _handler_registry


def set_handler_registry(registry):
    """Replace the pairs; states made from now on use them."""
    global _handler_registry
    _handler_registry = registry


def _handler(value):
    return next((handler(value) for kind, handler in _handler_registry if isinstance(value, kind)), None)


class TorchState(ObjectState):
    """Everything a training needs to go on, as attributes.

        state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, batch=0)

    Args:
        model, optimizer: a module and an optimizer, or None.
        kwargs: more of them, schedulers, `ElasticSampler`s; anything else is kept as a plain (picklable) object.
    """

    def __init__(self, model=None, optimizer=None, **kwargs):
        kwargs.update(model=model, optimizer=optimizer)
        handlers = {name: _handler(value) for name, value in kwargs.items()}
        self._handlers = {name: handler for name, handler in handlers.items() if handler is not None}
        for name, handler in self._handlers.items():
            object.__setattr__(self, name, handler.value)
        plain = {name: value for name, value in kwargs.items() if name not in self._handlers}
        super().__init__(bcast_object=broadcast_object, get_rank=rank, **plain)

    def __setattr__(self, name, value):
        if name in self.__dict__.get("_handlers", ()):
            self._handlers[name].set_value(value)
        super().__setattr__(name, value)

    def save(self):
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self):
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def saved(self):
        return {**super().saved(), "handled": {name: handler._saved for name, handler in self._handlers.items()}}

    def load_saved(self, saved):
        for name, handler in self._handlers.items():
            handler._saved = saved["handled"][name]
        super().load_saved(saved)

    def sync(self):
        for handler in self._handlers.values():
            handler.sync()
            handler.save()
        super().sync()

    def reset(self):
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()  # this rank's number and the world size may have changed

    def _agreed(self, news):
        # The news of any rank counts, not only that of rank 0.
        befores, latests, updates = zip(*allgather_object(news))
        return befores[0], max(latests), functools.reduce(operator.or_, updates)


def _file():
    """The file of commits, where a launcher starts lost ranks again; None elsewhere, and on all ranks but the first."""
    if os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") == "0" or rank() != 0:
        return None
    return core.place.folder() / f"{core.place.parent()}.commit"


def _write(state):
    path, saved = _file() if core.is_initialized() else None, state.saved()
    if path is not None and saved is not None:
        draft = path.with_suffix(".draft")
        torch.save(saved, draft)
        os.replace(draft, path)


def _resume(state):
    """Load the last commit of the ranks that were there before a restart."""
    path = _file()
    if path is not None and core.place.restart() and path.exists():
        state.load_saved(torch.load(path, weights_only=False))


def run(func=None, reset_limit=None):
    """Decorator: `func(state, …)` starts with the state alike on all ranks, and again from there after a reset.

    Collectives outside of `func` have to happen before the first call. `@run(reset_limit=3)` gives up, with a
    RuntimeError, when more resets are needed. See `run_fn`.
    """
    if func is None:
        return functools.partial(run, reset_limit=reset_limit)
    trains = run_fn(func, core.reset, reset_limit)

    @functools.wraps(func)
    def resuming(state, *args, **kwargs):
        core.init()
        _resume(state)
        answer, path = trains(state, *args, **kwargs), _file()
        if path is not None and path.exists():
            path.unlink()
        return answer

    return resuming


def run_fn(func, reset, reset_limit=None):
    """Wrap `func(state, …)` so that it goes on after a failure or after hosts have changed, until it returns.

    After a HorovodInternalError the state goes back to the last commit, after a HostsUpdatedInterrupt it stays; then
    `reset()` brings the ranks together, `state.on_reset()` is called, and `state.sync()` broadcasts it.

    Raises:
        RuntimeError: more than `reset_limit` resets would have been needed.
        CollectiveError: the same refusal twice in a row, since a mistake in the program does not go away.
        HorovodInternalError: a rank is lost, so that the ranks cannot meet.
        Whatever else `func` raises.
    """

    @functools.wraps(func)
    def wrapper(state, *args, **kwargs):
        resets, refusal, skip_sync, together = 0, None, False, True
        while True:
            try:
                if not together:
                    reset()
                    state.on_reset()
                    together = True
                if not skip_sync:
                    state.sync()
                return func(state, *args, **kwargs)
            except core.HorovodInternalError as error:
                if isinstance(error, core.CollectiveError):
                    if str(error) == refusal:
                        raise
                    refusal = str(error)
                if not together:
                    raise  # the ranks could not meet
                cause, skip_sync = error, False
                state.restore()
            except core.HostsUpdatedInterrupt as interrupt:
                cause, skip_sync = interrupt, interrupt.skip_sync
            if reset_limit is not None and resets >= reset_limit:
                raise RuntimeError(f"the ranks were reset {resets} times, and reset_limit is {reset_limit}") from cause
            resets, together = resets + 1, False

    return wrapper

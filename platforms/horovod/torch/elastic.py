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
import os
import random

import torch
from torch.utils.data import Sampler

from .. import core
from .functions import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from .mpi_ops import rank, size

__all__ = ["run", "State", "ObjectState", "TorchState", "ElasticSampler"]


class State:
    """What has to be alike on all ranks and survive the loss of some.

    Args:
        bcast_object: function that returns rank 0's object on every rank.
        get_rank: function that returns the rank of this process.
    """

    def __init__(self, bcast_object, get_rank):
        self._bcast_object, self._rank = bcast_object, get_rank
        self._reset_callbacks = []

    def register_reset_callbacks(self, callbacks):
        """Functions to call after every reset, for example to scale the learning rate to the number of ranks."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self):
        """Called when the ranks have met again, before `sync`."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self):
        """`save()`, also for a restart. It copies everything: once in many batches is often enough."""
        self.save()
        path, saved = _file() if core.is_initialized() else None, self.saved()
        if path is not None and saved is not None:
            draft = path.with_suffix(".draft")
            torch.save(saved, draft)
            os.replace(draft, path)

    def check_host_updates(self):
        """Nothing, since no rank joins later; scripts call it between commits."""

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


def _send_state(value):
    value.load_state_dict(broadcast_object(value.state_dict()))


_LRScheduler = getattr(torch.optim.lr_scheduler, "LRScheduler", torch.optim.lr_scheduler._LRScheduler)  # before torch 2
SENT_BY = {  # type of what has a state_dict -> how all ranks get that of rank 0
    torch.nn.Module: lambda model: broadcast_parameters(model.state_dict(), root_rank=0),
    torch.optim.Optimizer: lambda optimizer: broadcast_optimizer_state(optimizer, root_rank=0),
    _LRScheduler: _send_state,
    ElasticSampler: _send_state,
}


class TorchState(ObjectState):
    """Everything a training needs to go on, as attributes.

        state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, batch=0)

    Args:
        model, optimizer: a module and an optimizer, or None.
        kwargs: more of them, schedulers, `ElasticSampler`s; anything else is kept as a plain (picklable) object.
    """

    def __init__(self, model=None, optimizer=None, **kwargs):
        kwargs.update(model=model, optimizer=optimizer)
        self._states = {name: None for name, value in kwargs.items() if isinstance(value, tuple(SENT_BY))}
        for name in self._states:
            setattr(self, name, kwargs.pop(name))
        super().__init__(bcast_object=broadcast_object, get_rank=rank, **kwargs)

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name in self.__dict__.get("_states", ()):
            self._keep(name)

    def _keep(self, name):
        self._states[name] = copy.deepcopy(getattr(self, name).state_dict())

    def save(self):
        for name in self._states:
            self._keep(name)
        super().save()

    def restore(self):
        for name, state in self._states.items():
            getattr(self, name).load_state_dict(copy.deepcopy(state))
        super().restore()

    def saved(self):
        return {**super().saved(), "states": self._states}

    def load_saved(self, saved):
        self._states = saved["states"]
        super().load_saved(saved)

    def sync(self):
        for name in self._states:
            value = getattr(self, name)
            next(send for kind, send in SENT_BY.items() if isinstance(value, kind))(value)
            self._keep(name)
        super().sync()

    def reset(self):
        for value in map(self.__dict__.get, self._states):
            if isinstance(value, ElasticSampler):
                value.reset()  # this rank's number and the world size may have changed


def _file():
    """The file of commits, where a launcher starts lost ranks again; None elsewhere, and on all ranks but the first."""
    if os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") == "0" or rank() != 0:
        return None
    return core.place.folder() / f"{core.place.parent()}.commit"


def run(func):
    """Decorator: `func(state, …)` starts with the state alike on all ranks, and again after each failure.

    After a HorovodInternalError the state goes back to the last commit, and the ranks meet again. Collectives outside
    of `func` have to happen before the first call.

    Raises:
        CollectiveError: the same refusal twice in a row, since a mistake in the program does not go away.
        HorovodInternalError: a rank is lost, so that the ranks cannot meet; a launcher may start all of them again.
        Whatever else `func` raises.
    """

    @functools.wraps(func)
    def wrapper(state, *args, **kwargs):
        core.init()
        path, refusal = _file(), None
        if path is not None and core.place.restart() and path.exists():
            state.load_saved(torch.load(path, weights_only=False))
        while True:
            try:
                state.sync()
                answer = func(state, *args, **kwargs)
                break
            except core.HorovodInternalError as error:
                if isinstance(error, core.CollectiveError) and str(error) == refusal:
                    raise
                refusal = str(error)
                state.restore()
            core.reset()
            state.on_reset()
        if path is not None and path.exists():
            path.unlink()
        return answer

    return wrapper

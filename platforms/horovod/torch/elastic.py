"""Training that survives the loss of ranks: `@hvd.elastic.run` around a function of a `TorchState`, which commits.

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

    A subclass has `save` (keep a copy in memory), `restore` (go back to it), `sync` (take over rank 0's state), `reset`
    (adapt to the new world), and for restarts `saved` (what is written to a file, or None) and `load_saved`.

    Args:
        bcast_object: function that returns rank 0's object on every rank. get_rank: of this process.
    """

    def __init__(self, bcast_object, get_rank):
        self._bcast_object, self._rank, self._reset_callbacks = bcast_object, get_rank, []

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
        raise NotImplementedError

    restore = sync = save
    reset = saved = check_host_updates


class ObjectState(State):
    """Plain Python objects, given as keyword arguments, as attributes. They have to be picklable."""

    def __init__(self, bcast_object, get_rank, **kwargs):
        self._saved_state = kwargs
        self.__dict__.update(kwargs)
        ObjectState.save(self)
        super().__init__(bcast_object=bcast_object, get_rank=get_rank)

    def save(self):
        # Copies, because a list that is appended to after a commit must not change the commit.
        self._saved_state = {name: copy.deepcopy(getattr(self, name)) for name in self._saved_state}

    def restore(self):
        self.__dict__.update(copy.deepcopy(self._saved_state))

    def saved(self):
        return {"plain": self._saved_state}

    def load_saved(self, saved):
        self._saved_state = saved["plain"]
        self.restore()

    def sync(self):
        if self._saved_state:
            self.__dict__.update(self._bcast_object({name: getattr(self, name) for name in self._saved_state}))
            ObjectState.save(self)


class ElasticSampler(Sampler):
    """Indices of this rank, without those processed before the last `reset()`, for example before a restored commit.

    Put it into the `TorchState`, call `record_batch` after every batch and `set_epoch` at the END of an epoch (at
    its start, an interrupted training would repeat the epoch). The last indices are repeated where the
    number does not divide by the ranks. The dataset's length, `shuffle` and `seed` must be the same on all ranks.
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
        self.__dict__.update(state_dict)
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


STATEFUL = torch.nn.Module, torch.optim.Optimizer, ElasticSampler  # and schedulers, by another name before torch 2
STATEFUL += (getattr(torch.optim.lr_scheduler, "LRScheduler", torch.optim.lr_scheduler._LRScheduler),)


class TorchState(ObjectState):
    """Everything a training needs to go on, as attributes.

        state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, batch=0)

    `kwargs`: more modules, optimizers, schedulers, `ElasticSampler`s; anything else is a plain (picklable) object.
    """

    def __init__(self, model=None, optimizer=None, **kwargs):
        kwargs.update(model=model, optimizer=optimizer)
        self._states = {name: None for name, value in kwargs.items() if isinstance(value, STATEFUL)}
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
            if isinstance(value, torch.nn.Module):
                broadcast_parameters(value.state_dict(), root_rank=0)
            elif isinstance(value, torch.optim.Optimizer):
                broadcast_optimizer_state(value, root_rank=0)
            else:
                value.load_state_dict(broadcast_object(value.state_dict()))
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

    After a HorovodInternalError the state goes back to the last commit, and the ranks meet again; it is raised where a
    rank is lost, since only a launcher can start all of them again. So is the same CollectiveError twice in a row, as a
    mistake in the program does not go away. Collectives outside of `func` have to happen before the first call.
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

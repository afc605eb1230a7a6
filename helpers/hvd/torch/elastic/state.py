"""`TorchState`: models, optimizers, schedulers, samplers and plain objects, committed and restored together."""

import copy

import torch

from ..functions import broadcast_optimizer_state, broadcast_parameters
from ..mpi_ops import rank
from ..objects import allgather_object, broadcast_object
from .common import ObjectState
from .sampler import ElasticSampler


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


class LRSchedulerStateHandler(StateHandler):
    pass


class SamplerStateHandler(StateHandler):
    pass


_LRScheduler = getattr(torch.optim.lr_scheduler, "LRScheduler", torch.optim.lr_scheduler._LRScheduler)  # before torch 2
_handler_registry = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (_LRScheduler, LRSchedulerStateHandler),
    (ElasticSampler, SamplerStateHandler),
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

    def sync(self):
        for handler in self._handlers.values():
            handler.sync()
            handler.save()
        super().sync()

    def reset(self):
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()  # the rank and the number of ranks may be others now

    def _agreed(self, news):
        # The news of any rank count, not only of rank 0.
        everybody = allgather_object(news)
        return everybody[0][0], max(n[1] for n in everybody), _or(n[2] for n in everybody)


def _or(flags):
    result = 0
    for flag in flags:
        result |= flag
    return result

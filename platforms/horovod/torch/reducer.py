"""Gradients averaged over ranks while backward still runs (the inside of `DistributedOptimizer`).

A hook on every parameter fires when its gradient is complete and submits it; the core fuses waiting
gradients into buckets. This code runs for every gradient of every step, so it does little.
"""

import warnings
import weakref

import torch

from .. import core
from .functions import broadcast_object
from .mpi_ops import (
    UNCHECKED,
    Average,
    allreduce_async_,
    grouped_allreduce_async_,
    sparse_allreduce_async,
    synchronize,
)

TOO_MANY = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). "
    "Increase backward_passes_per_step to accumulate gradients locally."
)
CHANGED = (
    "the gradients of {} were changed (clipped, unscaled?) after loss.backward() while they were being reduced, so the "
    "change may be lost, or kept on some ranks only. Call optimizer.synchronize() before it, and optimizer.step() "
    "inside optimizer.skip_synchronize() after it."
)


class Slot:
    """One parameter: how many backward passes are left before its gradient is sent, and the gradient in flight."""

    __slots__ = ("parameter", "name", "left", "group", "gradient", "handle", "context", "sparse_dim", "version")

    def __init__(self, parameter, name, passes):
        self.parameter, self.name, self.left = parameter, name, passes
        self.group = self.gradient = self.handle = self.context = self.sparse_dim = None

    def takes_part(self):
        """Parameters without a gradient do, since other ranks may have one; frozen ones do not."""
        return self.parameter.requires_grad or self.parameter.grad is not None


class Group:
    """Slots whose gradients travel together."""

    __slots__ = ("slots", "ready", "dense", "handle")

    def __init__(self, slots):
        self.slots, self.ready, self.dense, self.handle = slots, 0, (), None


class Reducer:
    """The gradients of one optimizer on one rank.

    Args:
        named: pairs (name, parameter); those that need no gradient take part once they do.
        groups: None, a number of groups, or lists of parameters that travel together.
        others: as in `DistributedOptimizer`.
    """

    def __init__(self, named, compression, passes, op, predivide, groups, sparse_as_dense, process_set):
        self.compression, self.passes, self.sparse_as_dense = compression, passes, sparse_as_dense
        self.shared = {"op": op, "process_set": process_set}  # arguments of every reduction
        self.scales = {}
        if op == Average and predivide != 1.0:
            self.scales = {"prescale_factor": 1.0 / predivide, "postscale_factor": predivide}
        self.slots, self.groups, self.known = [], [], set()
        self.started = False  # a gradient has arrived since the last `finish`
        self.adopt(named)
        if groups is not None:
            self._form(groups, process_set)

    # -- at the start ----------------------------------------------------------------------

    def adopt(self, named):
        """Hook the parameters that need gradients and have no hook yet."""
        for name, parameter in named:
            if parameter.requires_grad and id(parameter) not in self.known:
                self.known.add(id(parameter))
                self.slots.append(Slot(parameter, name, self.passes))
                _hook(parameter, weakref.ref(self), self.slots[-1])

    def _form(self, groups, process_set):
        # In the order of one rank: another may have met the parameters in another order.
        order = broadcast_object([slot.name for slot in self.slots], process_set.ranks[0], None, process_set)
        place = {name: i for i, name in enumerate(order)}
        slots = sorted(self.slots, key=lambda slot: place[slot.name])
        if isinstance(groups, int):
            share, rest = divmod(len(slots), groups)
            ends = [share * (i + 1) + min(i + 1, rest) for i in range(groups)]
            parts = [slots[end - share - (i < rest) : end] for i, end in enumerate(ends)]
        else:
            by_id = {id(slot.parameter): slot for slot in slots}
            parts = [[by_id[id(p)] for p in group if id(p) in by_id] for group in groups]
        for part in filter(None, parts):
            self.groups.append(Group(part))
            for slot in part:
                slot.group = self.groups[-1]

    # -- during backward -------------------------------------------------------------------

    def arrived(self, slot):
        """A backward pass has finished the gradient of `slot`."""
        if slot.left <= 0:
            raise AssertionError(TOO_MANY)
        slot.left -= 1
        self.started = True
        if slot.left == 0:
            group = slot.group
            if group is None:
                self._send(slot)
            else:
                group.ready += 1
                if group.ready == len(group.slots):
                    self._send_group(group)

    def _send(self, slot):
        tensor = self._to_send(slot)
        if tensor.is_sparse:
            slot.handle, slot.context = sparse_allreduce_async(tensor, name=slot.name, **self.shared), None
            return
        tensor, slot.context = self.compression.compress(tensor)
        slot.handle = allreduce_async_(tensor, name=slot.name, **self.shared, **self.scales)

    def _send_group(self, group):
        dense, tensors = [], []
        for slot in group.slots:
            if not slot.takes_part():
                continue
            tensor = self._to_send(slot)
            if tensor.is_sparse:  # these are gathered, so they travel alone
                self._send(slot)
                continue
            tensor, slot.context = self.compression.compress(tensor)
            dense.append(slot)
            tensors.append(tensor)
        if dense:
            group.dense = dense
            group.handle = grouped_allreduce_async_(tensors, name=dense[0].name, **self.shared, **self.scales)

    def _to_send(self, slot):
        parameter = slot.parameter
        gradient = parameter.grad
        if gradient is None:
            gradient = parameter.grad = _nothing(parameter, slot.sparse_dim)
        slot.gradient, slot.version = gradient, gradient._version
        if gradient.is_sparse:
            slot.sparse_dim = gradient.sparse_dim()
            if self.sparse_as_dense:
                return gradient.to_dense()
        return gradient

    # -- after backward --------------------------------------------------------------------

    def finish(self):
        """Send what has not been sent, wait for everything, put the results into the gradients.

        Raises:
            HorovodInternalError: a reduction failed (the first error, after all have ended: only then are the
                names of the others free again).
        """
        failures, changed = [], []
        try:
            self._send_rest()
        except core.HorovodInternalError as error:
            failures.append(error)
        for slots, handle, grouped in self._in_flight():
            try:
                outputs = handle() if callable(handle) else synchronize(handle)
            except core.HorovodInternalError as error:
                failures.append(error)
                continue
            for slot, output in zip(slots, outputs if grouped else [outputs]):
                if slot.gradient._version != slot.version:  # results arrive without counting as a change
                    changed.append(slot.name)
                self._put(slot, output)
        self.forget()
        if changed:
            warnings.warn(CHANGED.format(", ".join(changed[:3]) + ", …" * (len(changed) > 3)), stacklevel=4)
        if failures:
            raise failures[0]

    def _send_rest(self):
        for group in self.groups:
            if group.ready < len(group.slots):
                self._send_group(group)
        for slot in self.slots:
            if slot.group is None and slot.handle is None and slot.takes_part():
                self._send(slot)

    def _in_flight(self):
        for group in self.groups:
            if group.handle is not None:
                yield group.dense, group.handle, True
        for slot in self.slots:
            if slot.handle is not None:
                yield (slot,), slot.handle, False

    def _put(self, slot, output):
        gradient = slot.gradient
        if not output.is_sparse:
            output = self.compression.decompress(output, slot.context)
        if gradient.is_sparse:
            gradient = output if output.is_sparse else output.to_sparse(slot.sparse_dim)
        elif output is not gradient:
            gradient.copy_(output)
        if slot.parameter.grad is not gradient:
            slot.parameter.grad = gradient

    def forget(self):
        """Return to the state before the first backward pass; results still in flight are ignored."""
        self.started = False
        for slot in self.slots:
            slot.left, slot.gradient, slot.handle, slot.context = self.passes, None, None, None
        for group in self.groups:
            group.ready, group.dense, group.handle = 0, (), None


def _hook(parameter, reducer, slot):
    # A weak reference, so that a discarded optimizer stops sending the gradients of its model.
    def hook(*_):
        alive = reducer()
        if alive is not None:
            alive.arrived(slot)

    parameter.register_post_accumulate_grad_hook(hook)


def _nothing(parameter, sparse_dim):
    """The gradient of a parameter that took no part in the loss; sparse if it was so in an earlier step."""
    if sparse_dim is None:
        return torch.zeros_like(parameter, requires_grad=False)
    indices = torch.zeros((sparse_dim, 0), dtype=torch.int64, device=parameter.device)
    values = parameter.new_zeros((0,) + tuple(parameter.shape[sparse_dim:]))
    return torch.sparse_coo_tensor(indices, values, parameter.shape, **UNCHECKED)

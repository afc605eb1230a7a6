"""Gradients averaged over ranks while backward still runs (the inside of `DistributedOptimizer`).

Parameters belong to buckets, which are sent in one fixed order on all ranks, in a lane of the optimizer's own. The
first bucket of a step announces the others, so that the ranks compare their requests once a step. A hook on every
parameter fires when its gradient is complete; a bucket is sent when all of its gradients are, after those before it.
The first step sends everything after backward, as only then it is known which gradients are sparse.
"""

import functools
import os
import warnings
import weakref

import torch

from .. import core
from ..core import Entry, job
from ..core.requests import digest_of
from .mpi_ops import Average, sparse_allreduce_async

TOO_MANY = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). "
    "Increase backward_passes_per_step to accumulate gradients locally."
)
CHANGED = (
    "the gradients of {} were changed (clipped, unscaled?) after loss.backward() while they were being reduced, so the "
    "change may be lost, or kept on some ranks only. Call optimizer.synchronize() before it, and optimizer.step() "
    "inside optimizer.skip_synchronize() after it."
)
LARGEST, SMALLEST, PARTS = 25 * 2**20, 2**16, 6  # bytes of a bucket; how many a small model has


class Slot:
    """One parameter: how many backward passes are left before its gradient is sent, and the gradient in flight."""

    __slots__ = ("parameter", "name", "left", "bucket", "gradient", "context", "sparse_dim", "version")

    def __init__(self, parameter, name, passes):
        self.parameter, self.name, self.left = parameter, name, passes
        self.bucket = self.gradient = self.context = self.sparse_dim = None

    def takes_part(self):
        """Parameters without a gradient do, since other ranks may have one; frozen ones do not."""
        return self.parameter.requires_grad or self.parameter.grad is not None


class Bucket:
    """Slots whose gradients travel together; `missing`: how many gradients are not complete."""

    __slots__ = ("slots", "missing", "request", "digest", "looks", "entry")

    def __init__(self, slots):
        self.slots, self.missing, self.entry = slots, len(slots), None
        for slot in slots:
            slot.bucket = self


class Reducer:
    """The gradients of one optimizer on one rank; arguments as of `DistributedOptimizer`.

    `named`: a method that gives pairs (name, parameter); those that need no gradient take part once they do.
    """

    def __init__(self, named, compression, passes, op, predivide, groups, sparse_as_dense, process_set):
        self.compression, self.passes, self.sparse_as_dense = compression, passes, sparse_as_dense
        self.op, self.process_set, self.groups = op, process_set, groups
        self.scales = [1.0 / predivide, float(predivide)] if op == Average and predivide != 1.0 else [1.0, 1.0]
        self.job = self.lane = None
        self._open_lane()
        self.slots, self.known = [], set()
        self.planned, self.buckets, self.sparse = None, [], []
        self.started, self.sent = False, None  # a gradient has arrived; buckets sent in this step (None: not planned)
        self.named = weakref.WeakMethod(named)
        self.adopt()

    def _open_lane(self):
        if self.job is not job.current():  # after a reset another one
            self.job = job.current()
            self.lane = self.job.own_lane(core.sets.number(self.process_set))

    def adopt(self):
        """Hook the parameters that need gradients and have no hook yet: in groups added, in layers thawed since."""
        for name, parameter in self.named()():
            if parameter.requires_grad and id(parameter) not in self.known:
                self.known.add(id(parameter))
                self.slots.append(Slot(parameter, name, self.passes))
                # A weak reference, so that a discarded optimizer stops sending the gradients of its model.
                hook = functools.partial(_arrived, weakref.ref(self), self.slots[-1])
                parameter.register_post_accumulate_grad_hook(hook)

    # -- during backward -------------------------------------------------------------------

    def arrived(self, slot):
        """A backward pass has finished the gradient of `slot`."""
        if slot.left <= 0:
            raise AssertionError(TOO_MANY)
        if not self.started:
            self.started = True
            self.adopt()
            self._open_lane()
            self.sent = 0 if self.planned is not None and self.planned == self._members() else None
        slot.left -= 1
        if slot.left == 0:
            slot.gradient = slot.parameter.grad
            slot.version = slot.gradient._version
        if slot.left == 0 and slot.bucket is not None and self.sent is not None:
            slot.bucket.missing -= 1
            if slot.bucket.missing == 0:
                self._send_ready()

    def _send_ready(self):
        while self.sent < len(self.buckets) and self.buckets[self.sent].missing == 0:
            self._send(self.buckets[self.sent])

    def _members(self):
        return [id(slot) for slot in self.slots if slot.takes_part()]

    def _send(self, bucket, tensors=None):
        self.sent += 1
        tensors = tensors or self._to_send(bucket)
        if [(tensor.dtype, tensor.shape) for tensor in tensors] != bucket.looks:
            raise core.CollectiveError(f"{bucket.request['name']}: compressed to other dtypes or shapes than before")
        ready = torch.cuda.current_stream(tensors[0].device).record_event() if tensors[0].is_cuda else None
        entry = Entry(bucket.request, tensors, tensors, ready, bucket.digest, follower=bucket is not self.buckets[0])
        bucket.entry = self.lane.submit(entry, at_once=True)

    def _to_send(self, bucket):
        tensors = []
        for slot in bucket.slots:
            gradient = slot.parameter.grad
            if gradient is None:
                gradient = slot.parameter.grad = torch.zeros_like(slot.parameter, requires_grad=False)
            if slot.gradient is not gradient:
                slot.gradient, slot.version = gradient, gradient._version
            tensor, slot.context = self.compression.compress(gradient.to_dense() if gradient.is_sparse else gradient)
            tensors.append(tensor)
        return tensors

    # -- the plan --------------------------------------------------------------------------

    def _plan(self):
        """Form the buckets, now that it is known which gradients are sparse; the ranks do it alike, or are told so.

        The request of the first bucket has those of the others in it, and the names of what is sparse.
        """
        self.planned, slots = self._members(), [slot for slot in self.slots if slot.takes_part()]
        for slot in self.slots:
            slot.bucket, gradient = None, slot.parameter.grad
            if gradient is not None and gradient.is_sparse and not self.sparse_as_dense:
                slot.sparse_dim = gradient.sparse_dim()
        self.sparse = [slot for slot in slots if slot.sparse_dim is not None]
        dense = [slot for slot in slots if slot.sparse_dim is None]
        self.buckets = [Bucket(part) for part in _parts(dense, self.groups)]
        everything = [self._to_send(bucket) for bucket in self.buckets]
        for bucket, tensors in zip(self.buckets, everything):
            bucket.looks = [(tensor.dtype, tensor.shape) for tensor in tensors]
            bucket.request = {
                "kind": "allreduce",
                "name": f"gradients of {bucket.slots[0].name}",
                "tensors": [[str(t.dtype)[6:], list(t.shape), t.device.type] for t in tensors],
                "parts": [slot.name for slot in bucket.slots],
                "bytes": sum(t.numel() * t.element_size() for t in tensors),
                "op": self.op.name,
                "scales": self.scales,
            }
        for bucket in self.buckets[:1]:
            bucket.request["more"] = [other.request for other in self.buckets[1:]]
            bucket.request["sparse"] = [slot.name for slot in self.sparse]
        for bucket in self.buckets:
            bucket.digest = digest_of(bucket.request)
        return everything

    # -- after backward --------------------------------------------------------------------

    def finish(self):
        """Send what has not been sent, wait for all, put the results into the gradients; raise the first error."""
        if self.sent is None or self.planned != self._members():
            if self.sent:
                raise core.CollectiveError("parameters were frozen or thawed between backward() and step()")
            self._open_lane()
            everything, self.sent = self._plan(), 0
            for bucket, tensors in zip(self.buckets, everything):
                self._send(bucket, tensors)
        failures, changed = [], []
        while self.sent < len(self.buckets):
            self._send(self.buckets[self.sent])
        for bucket in self.buckets:
            try:
                self._put(bucket, self.lane.wait(bucket.entry), changed)
            except core.HorovodInternalError as error:
                failures.append(error)
        try:
            for slot in self.sparse if not failures else ():
                self._gather(slot)
        except core.HorovodInternalError as error:
            failures.append(error)
        self.forget()
        if changed:
            warnings.warn(CHANGED.format(", ".join(changed[:3]) + ", …" * (len(changed) > 3)), stacklevel=4)
        if failures:
            self.planned = None
            raise failures[0]

    def _put(self, bucket, outputs, changed):
        for slot, output in zip(bucket.slots, outputs):
            gradient = slot.gradient
            if gradient._version != slot.version:  # results arrive without counting as a change
                changed.append(slot.name)
            output = self.compression.decompress(output, slot.context)
            if gradient.is_sparse:
                gradient = output.to_sparse(gradient.sparse_dim())
            elif output is not gradient:
                gradient.copy_(output)
            if slot.parameter.grad is not gradient:
                slot.parameter.grad = gradient

    def _gather(self, slot):
        """Reduce a sparse gradient; one that took no part in the loss is empty."""
        gradient = slot.parameter.grad
        if gradient is None:
            gradient = torch.zeros_like(slot.parameter, requires_grad=False)
        if not gradient.is_sparse:
            gradient = gradient.to_sparse(slot.sparse_dim)
        slot.parameter.grad = sparse_allreduce_async(gradient, slot.name, self.op, self.process_set)()

    def forget(self):
        """Return to the state before the first backward pass; results still in flight are ignored."""
        self.started, self.sent = False, None
        for slot in self.slots:
            slot.left, slot.gradient, slot.context = self.passes, None, None
        for bucket in self.buckets:
            bucket.missing, bucket.entry = len(bucket.slots), None


def _arrived(reducer, slot, _):
    alive = reducer()
    if alive is not None:
        alive.arrived(slot)


def _parts(slots, groups):
    """The buckets' slots in the order of sending: that of backward, the parameters' in reverse.

    `groups`: None (buckets by size), a number of groups, or lists of parameters; the others have buckets by size.
    """
    if isinstance(groups, int):
        count = min(groups, len(slots))
        ends = [len(slots) * (i + 1) // count for i in range(count)]
        return [slots[begin:end] for begin, end in zip([0, *ends], ends)][::-1]
    listed = [{id(parameter) for parameter in group} for group in groups or ()]
    parts = [[slot for slot in slots if id(slot.parameter) in group] for group in listed]
    rest = [slot for slot in slots if not any(id(slot.parameter) in group for group in listed)]
    return _by_size(rest[::-1]) + [part for part in parts[::-1] if part]


def _by_size(slots):
    sizes = [slot.parameter.numel() * slot.parameter.element_size() for slot in slots]
    most = min(LARGEST, int(os.environ.get("HOROVOD_FUSION_THRESHOLD", LARGEST)))
    most = min(most, max(SMALLEST, sum(sizes) // PARTS))
    parts, room = [], -1
    for slot, size in zip(slots, sizes):
        if size > room:
            parts.append([])
            room = most
        parts[-1].append(slot)
        room -= size
    return parts

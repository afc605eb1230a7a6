"""The two short measurements that the cost model is fitted to, and beside them the steps to hold it against.

All ranks compute at the same time, because devices of one machine share its memory. Steps with DDP are measured in
the same rounds, so that a machine that gets slower does so for all of them; `fit.fit` never sees them.
"""

import itertools
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from .. import device
from ..launcher.group import distributed

SIZES = (2**12, 2**18, 2**20, 2**22, 2**23, 2**24)  # bytes of the tensors that are all-reduced
WARM_UP, ROUNDS = 1, 8
HOOKS = {"fp16": default_hooks.fp16_compress_hook}


def measure(make, batches, ddp=None, sizes=SIZES, rounds=ROUNDS, solo=None, shape=(3, 32, 32), classes=10) -> dict:
    """On a rank: time steps alone, all-reduces, and steps with DDP, in turn.

    Args:
        make: a function that makes the model. batches: samples of a step alone, on each rank.
        ddp: {name: options} of the steps with DDP: batch, and maybe bucket_mb, accumulation, compression.
        solo: samples of a step that rank 0 makes while the other ranks sleep: several in a row, after all else, as a
            baseline on one device makes them.

    Returns:
        a dict for `fit`, under "ddp" {name: [seconds of a step, …]}, "solo" [seconds, …], "loss" {name: the last}.
    """
    with distributed() as world:
        alone = Trainer(world, make, shape, classes)
        trainers = {name: Trainer(world, make, shape, classes, **options) for name, options in (ddp or {}).items()}
        buffers = {size: torch.zeros(max(1, size // 4), device=world.device) for size in sizes}
        found = {
            "one": {b: [] for b in batches},
            "sweep": {s: [] for s in sizes},
            "beside": {s: [] for s in sorted(sizes)[-2:]},
            "ddp": {n: [] for n in trainers},
        }
        copies, handed, ready, losses = [], [], [], {}
        for turn in range(WARM_UP + rounds):
            for batch in batches:
                found["one"][batch].append(alone.parts(batch))
            ready.append(alone.readiness(batches[-1]))
            for size, buffer in buffers.items():
                alone.parts(min(batches))  # leaves the caches as training does
                found["sweep"][size].append([_timed(world, lambda buffer=buffer: dist.all_reduce(buffer))])
            nothing = alone.backward(batches[-1])
            for size, of in found["beside"].items():
                of.append([nothing, alone.backward(batches[-1], buffers[size])])
            handed.append(_hand_out(world, alone.module))
            copies.append(_copies(world, buffers[max(sizes)]))
            for name in list(trainers)[:: 1 - 2 * (turn % 2)]:  # there and back: each goes first as often
                seconds, losses[name] = trainers[name].step()
                found["ddp"][name].append(seconds)
        for of in found.values():
            for key in of:
                del of[key][:WARM_UP]
        by_itself = []
        if solo:
            by_itself = [sum(alone.parts(solo, meet=False)) for _ in range(WARM_UP + rounds) if world.rank == 0]
            dist.barrier()
        return {
            **found,
            "copy": (4 * buffers[max(sizes)].numel(), copies[WARM_UP:]),
            "ready": ready[WARM_UP:],
            "bytes": alone.order,
            "broadcasts": any(True for _ in alone.module.buffers()),
            "handed": handed[WARM_UP:],
            "loss": losses,
            "solo": by_itself[WARM_UP:],
        }


class Trainer:
    """A model on this rank, alone or, given a batch, with DDP."""

    def __init__(self, world, make, shape, classes, batch=None, bucket_mb=None, accumulation=1, compression=None):
        torch.manual_seed(0)
        self.world, self.shape, self.classes = world, shape, classes
        self.module = make().to(world.device)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.005, momentum=0.9)
        self.batch, self.accumulation, self.ddp = batch, accumulation, None
        if batch is not None:
            ids = None if world.device.type == "cpu" else [world.device.index]
            self.ddp = DistributedDataParallel(self.module, device_ids=ids, bucket_cap_mb=bucket_mb)
            if compression:
                self.ddp.register_comm_hook(None, HOOKS[compression])
        self.data = torch.Generator().manual_seed(world.rank)
        self.order, self.batches = [], {}

    def samples(self, batch, part=0):
        """The same for the same arguments; each micro-batch (`part`) of an update has samples of its own."""
        if (batch, part) not in self.batches:
            images = torch.randn(batch, *self.shape, generator=self.data).to(self.world.device)
            labels = torch.randint(0, self.classes, (batch,), generator=self.data).to(self.world.device)
            self.batches[batch, part] = images, labels
        return self.batches[batch, part]

    def parts(self, batch, meet=True):
        """(forward, backward, update) of a step alone, in seconds; all ranks begin it together, if they `meet`."""
        images, labels = self.samples(batch)
        if meet:
            _meet(self.world)
        moments = [self._now()]
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.module(images), labels)
        moments.append(self._now())
        loss.backward()
        moments.append(self._now())
        self.optimizer.step()
        moments.append(self._now())
        return [b - a for a, b in itertools.pairwise(moments)]

    def readiness(self, batch):
        """For each gradient, in the order of its coming, the share of backward after which it is there."""
        images, labels = self.samples(batch)
        came, hooks = [], []
        for p in self.module.parameters():
            hooks.append(p.register_post_accumulate_grad_hook(lambda p: came.append((self._now(), p.numel() * 4))))
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.module(images), labels)
        begin = self._now()
        loss.backward()
        end = self._now()
        for hook in hooks:
            hook.remove()
        self.order = [size for _, size in came]
        return [(moment - begin) / (end - begin) for moment, _ in came]

    def backward(self, batch, buffer=None):
        """Seconds of a backward pass, beside an all-reduce of `buffer` if one is given."""
        images, labels = self.samples(batch)
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.module(images), labels)
        _meet(self.world)
        began = self._now()
        sending = None if buffer is None else dist.all_reduce(buffer, async_op=True)
        loss.backward()
        if self.world.device.type != "cpu":
            torch.accelerator.current_stream().synchronize()  # the stream that computes, not the one that sends
        took = time.perf_counter() - began
        if sending:
            sending.wait()
        return took

    def step(self):
        """(seconds, loss) of a step with DDP; the loss is the mean of its micro-batches."""
        batches, losses = [self.samples(self.batch, part) for part in range(self.accumulation)], []
        _meet(self.world)
        began = self._now()
        self.optimizer.zero_grad()
        for part, (images, labels) in enumerate(batches):
            self.ddp.require_backward_grad_sync = part == self.accumulation - 1  # what no_sync() sets
            losses.append(F.cross_entropy(self.ddp(images), labels))
            (losses[-1] / self.accumulation).backward()
        self.optimizer.step()
        return self._now() - began, sum(loss.item() for loss in losses) / self.accumulation

    def _now(self):
        device.synchronize(self.world.device)
        return time.perf_counter()


def _meet(world):
    dist.all_reduce(torch.zeros(1, device=world.device))
    device.synchronize(world.device)


def _timed(world, call):
    """Seconds that `call` takes when all ranks begin it at the same time."""
    _meet(world)
    began = time.perf_counter()
    call()
    device.synchronize(world.device)
    return time.perf_counter() - began


def _hand_out(world, module):
    """Seconds until this rank has the buffers of rank 0, a message a dtype, as DDP sends them before forward."""
    flat = {}
    for buffer in module.buffers():
        flat.setdefault(buffer.dtype, []).append(buffer.detach().flatten())

    def broadcast():
        for work in [dist.broadcast(torch.cat(parts), 0, async_op=True) for parts in flat.values()]:
            work.wait()

    return _timed(world, broadcast)


def _copies(world, buffer):
    """Seconds to copy a tensor there and back, as gradients go into buckets and come out; the same by way of fp16."""
    others = torch.zeros_like(buffer), torch.zeros_like(buffer, dtype=torch.float16)
    return [_timed(world, lambda other=other: buffer.copy_(other.copy_(buffer))) for other in others]

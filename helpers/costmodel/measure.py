"""The two short measurements that the cost model is fitted to, and beside them the steps with DDP to compare with.

All ranks compute at the same time, because devices of one machine share its memory. Steps with DDP are measured in
the same rounds, so that a machine that gets slower does so for all of them; `fit.fit` never sees them.
"""

import itertools
import time
from collections import defaultdict

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


def measure(make, batches, ddp=None, sizes=SIZES, rounds=ROUNDS, solo=None, shape=(3, 32, 32)) -> dict:
    """On a rank: time steps alone, all-reduces, and steps with DDP, in turn.

    Args:
        make: a function that makes the model. batches: samples of a step alone, on each rank.
        ddp: {name: options} of the steps with DDP: batch, and maybe bucket_mb, accumulation, compression.
        solo: samples of a step that rank 0 makes while the other ranks sleep: several in a row, after all else, as a
            baseline on one device makes them.

    Returns:
        a dict for `fit`: {kind: {key: a list of samples, one a round}}; "ddp" has the names as keys, "solo" the batch;
        "loss" is {name: the last}.
    """
    with distributed() as world:
        alone = Trainer(world, make, shape)
        trainers = {name: Trainer(world, make, shape, **options) for name, options in (ddp or {}).items()}
        tensors = {size: torch.zeros(max(1, size // 4), device=world.device) for size in sizes}
        largest, other = tensors[max(sizes)], torch.zeros_like(tensors[max(sizes)])
        buffers = [buffer.flatten().float() for buffer in alone.model.buffers()]
        small = torch.cat(buffers) if buffers else torch.zeros(1, device=world.device)
        found = defaultdict(lambda: defaultdict(list))
        for turn in range(WARM_UP + rounds):
            for batch in batches:
                found["one"][batch].append(alone.step(batch))
            found["ready"][0].append(alone.readiness(batches[-1]))
            for size, tensor in tensors.items():
                alone.step(min(batches))  # leaves the caches as training does
                found["sweep"][size].append(_timed(world, lambda tensor=tensor: dist.all_reduce(tensor)))
            for size in sorted(sizes)[-2:]:
                found["beside"][size].append(alone.step(batches[-1], tensors[size])[1])
            found["broadcast"][0].append(_timed(world, lambda: dist.broadcast(small, 0)))
            found["copy"][largest.nbytes].append(_timed(world, lambda: largest.copy_(other.copy_(largest))))
            for name in list(trainers)[:: 1 - 2 * (turn % 2)]:  # there and back: each goes first as often
                found["ddp"][name].append(sum(trainers[name].step(trainers[name].batch)))
        if solo:
            for _ in range(WARM_UP + rounds if world.rank == 0 else 0):
                found["solo"][solo].append(sum(alone.step(solo, meet=False)))
            dist.barrier()
        return {
            **{kind: {key: samples[WARM_UP:] for key, samples in of.items()} for kind, of in found.items()},
            "bytes": alone.order,
            "broadcasts": bool(buffers),
            "loss": {name: trainer.loss for name, trainer in trainers.items()},
        }


class Trainer:
    """A model on this rank, alone or, given a batch, with DDP."""

    def __init__(self, world, make, shape, batch=None, bucket_mb=None, accumulation=1, compression=None):
        torch.manual_seed(0)
        self.world, self.shape, self.batch, self.accumulation = world, shape, batch, accumulation
        self.model = make().to(world.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.005, momentum=0.9)
        if batch is not None:
            ids = None if world.device.type == "cpu" else [world.device.index]
            self.model = DistributedDataParallel(self.model, device_ids=ids, bucket_cap_mb=bucket_mb)
            if compression:
                self.model.register_comm_hook(None, HOOKS[compression])
        self.random, self.batches = torch.Generator().manual_seed(world.rank), {}
        self.moments, self.order, self.loss = [], [], 0.0

    def samples(self, batch, part):
        """Cached random samples for each (batch, micro-batch)."""
        if (batch, part) not in self.batches:
            images = torch.randn(batch, *self.shape, generator=self.random)
            self.batches[batch, part] = images, torch.randint(0, 10, (batch,), generator=self.random)
        return [tensor.to(self.world.device) for tensor in self.batches[batch, part]]

    def step(self, batch, tensor=None, meet=True):
        """Seconds of forward and backward, for each micro-batch, and of the update; the ranks begin together (`meet`).

        An all-reduce of `tensor`, if given, goes on beside backward. `loss` becomes the mean of the micro-batches.
        """
        pieces, losses, sending = [self.samples(batch, part) for part in range(self.accumulation)], [], None
        if meet:
            _meet(self.world)
        self.moments = [self._now()]
        self.optimizer.zero_grad()
        for part, (images, labels) in enumerate(pieces, start=1):
            self.model.require_backward_grad_sync = part == self.accumulation  # what DDP's no_sync() sets
            losses.append(F.cross_entropy(self.model(images), labels) / self.accumulation)
            if tensor is not None:
                _meet(self.world)
            self.moments.append(self._now())
            if tensor is not None:
                sending = dist.all_reduce(tensor, async_op=True)
            losses[-1].backward()
            self.moments.append(self._now())
        if sending:
            sending.wait()
        self.optimizer.step()
        self.moments.append(self._now())
        self.loss = sum(loss.item() for loss in losses)
        return [b - a for a, b in itertools.pairwise(self.moments)]

    def readiness(self, batch):
        """For each gradient, in the order of its coming, the share of backward after which it is there."""
        came, hooks = [], []
        for p in self.model.parameters():
            hooks.append(p.register_post_accumulate_grad_hook(lambda p: came.append((p.nbytes, self._now()))))
        self.step(batch)
        for hook in hooks:
            hook.remove()
        self.order, (begin, end) = [size for size, _ in came], self.moments[1:3]
        return [(moment - begin) / (end - begin) for _, moment in came]

    def _now(self):
        if self.world.device.type != "cpu":
            torch.accelerator.current_stream().synchronize()  # the stream that computes, not the one that sends
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

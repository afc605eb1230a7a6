"""Two short measurements on ranks, and the cost model's numbers of this machine that they give.

    answers = launch(fit.measure, 2, make_model, (16, 64), threads=1)
    fitted = fit.fit(answers, batches=(16, 64))
    costmodel.step(fitted.compute, fitted.link, 2, 32).seconds

The two are: steps of every rank for itself, at two batch sizes, and an all-reduce of growing tensors, some of them
beside a backward pass, which shows what does not overlap. All ranks compute at the same time, because devices of one
machine share its memory. Steps with DDP are measured in the same rounds, so that a machine that gets slower does so
for all of them; `fit` never sees them.
"""

import itertools
import math
import time
from collections import defaultdict
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from .. import device
from ..group.process_group import distributed
from .model import Compute, Link, all_reduce

SIZES = (2**12, 2**18, 2**20, 2**22, 2**23, 2**24)  # bytes of the tensors that are all-reduced
WARM_UP = 1  # rounds


# -- measure ------------------------------------------------------------------------------


def measure(make, batches, ddp=None, sizes=SIZES, rounds=8, shape=(3, 32, 32)) -> dict:
    """On a rank: time steps alone, all-reduces, and steps with DDP, in turn.

    Args:
        make: a function that makes the model. batches: samples of a step alone, on each rank.
        ddp: {name: options} of the steps with DDP: batch, and maybe bucket_mb, accumulation, compression.

    Returns:
        a dict for `fit`: {kind: {key: a list of samples, one a round}}; "ddp" has the names as keys; "loss" is {name:
        the last}.
    """
    with distributed() as world:
        alone = Trainer(world, make, shape)
        trainers = {name: Trainer(world, make, shape, **options) for name, options in (ddp or {}).items()}
        tensors = {size: torch.zeros(size // 4, device=world.device) for size in sorted(sizes)}
        *_, second, largest = tensors.values()
        buffers, other = [buffer.flatten().float() for buffer in alone.model.buffers()], torch.zeros_like(largest)
        small = torch.cat(buffers) if buffers else None
        found = defaultdict(lambda: defaultdict(list))
        for turn in range(WARM_UP + rounds):
            for batch in batches:
                found["one"][batch].append(alone.step(batch))
            found["ready"][0].append(alone.readiness(batches[-1]))
            for size, tensor in tensors.items():
                alone.step(min(batches))  # leaves the caches as training does
                found["sweep"][size].append(_timed(world, lambda tensor=tensor: dist.all_reduce(tensor)))
            for tensor in (second, largest):
                found["beside"][tensor.nbytes].append(alone.step(batches[-1], tensor)[1])
            broadcast = 0.0 if small is None else _timed(world, lambda: dist.broadcast(small, 0))
            found["broadcast"][0].append(broadcast)
            found["copy"][largest.nbytes].append(_timed(world, lambda: largest.copy_(other.copy_(largest))))
            for name in list(trainers)[:: 1 - 2 * (turn % 2)]:  # there and back: each goes first as often
                found["ddp"][name].append(sum(trainers[name].step(trainers[name].batch)))
        return {
            **{kind: {key: samples[WARM_UP:] for key, samples in of.items()} for kind, of in found.items()},
            "bytes": alone.order,
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
            if compression == "fp16":
                self.model.register_comm_hook(None, default_hooks.fp16_compress_hook)

    def samples(self, batch, part):
        """Random samples, the same in each step: images and labels of a micro-batch of this rank."""
        random = torch.Generator().manual_seed(1000 * self.world.rank + part)
        images = torch.randn(batch, *self.shape, generator=random)
        return [each.to(self.world.device) for each in (images, torch.randint(0, 10, (batch,), generator=random))]

    def step(self, batch, tensor=None):
        """Seconds of forward and backward, for each micro-batch, and of the update; the ranks begin together.

        An all-reduce of `tensor`, if given, goes on beside backward. `loss` becomes the mean of the micro-batches.
        """
        pieces, losses = [self.samples(batch, part) for part in range(self.accumulation)], []
        _meet(self.world)
        self.moments = [self._now()]
        self.optimizer.zero_grad()
        for part, (images, labels) in enumerate(pieces, start=1):
            self.model.require_backward_grad_sync = part == self.accumulation  # what DDP's no_sync() sets
            losses.append(F.cross_entropy(self.model(images), labels) / self.accumulation)
            if tensor is not None:
                _meet(self.world)
            self.moments.append(self._now())
            sending = None if tensor is None else dist.all_reduce(tensor, async_op=True)
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
        came, arrived = [], lambda p: came.append((p.nbytes, self._now()))
        hooks = [p.register_post_accumulate_grad_hook(arrived) for p in self.model.parameters()]
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


# -- fit ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """The fitted model, and what it was fitted from."""

    compute: Compute
    link: Link
    devices: int  # that measured
    sweep: dict  # {bytes: seconds of an all-reduce, round by round}

    @property
    def residuals(self) -> dict:
        """{bytes: fitted / measured - 1} of the sweep's medians."""
        return {size: sum(all_reduce(size, self.devices, self.link)) / median(s) - 1 for size, s in self.sweep.items()}


def restored(kept) -> Fit:
    """A Fit from its `dataclasses.asdict`, also by way of JSON."""
    sweep = {int(size): seconds for size, seconds in kept["sweep"].items()}
    return Fit(Compute(**kept["compute"]), Link(**kept["link"]), kept["devices"], sweep)


def fit(answers, batches) -> Fit:
    """The cost model from what `measure` returned on each rank.

    Raises:
        ValueError: fewer than two batch sizes or ranks.
    """
    ranks = len(answers)
    if ranks < 2 or len(set(batches)) < 2:
        raise ValueError(f"{ranks} rank(s), batches {batches}: a fit needs two ranks and two batch sizes")

    def samples(kind):
        """{key: samples of all ranks, which measured at the same time, as an array of [rank, round, …]}"""
        return {key: np.array([of[kind][key] for of in answers]) for key in answers[0][kind]}

    one = samples("one")
    forward, backward, update = (
        {batch: float(np.median(steps[:, :, part].mean(0))) for batch, steps in one.items()} for part in range(3)
    )
    sweep = {size: seconds.mean(0).tolist() for size, seconds in samples("sweep").items()}
    medians = {size: median(seconds) for size, seconds in sweep.items()}
    lost = []  # by a backward pass beside an all-reduce, in seconds a byte; also for the part that outlasts it
    for size, seconds in samples("beside").items():
        beside = seconds.mean(0)
        lost.extend((beside - one[batches[-1]][:, :, 1].mean(0)) * np.maximum(1, medians[size] / beside) / size)
    start, slope = line(medians)
    turns = 2 * (ranks - 1)  # messages of a ring, each of 1/ranks of the tensor
    [(copied, copies)] = samples("copy").items()
    link = Link(
        latency=start / turns,
        per_byte=slope * ranks / turns,
        taken_per_byte=max(0.0, float(np.median(lost))),
        copy_per_byte=float(np.median(copies)) / copied,
        broadcast=float(np.median(samples("broadcast")[0].max(0))) / math.ceil(math.log2(ranks)),
    )
    unbiased = (ranks / (ranks - 1)) ** 0.5  # the mean of the ranks is drawn towards each of its few ranks
    totals = [steps.sum(2) for steps in one.values()]
    compute = Compute(
        line(forward),
        line(backward),
        update=float(np.median(list(update.values()))),
        gradients=tuple(zip(answers[0]["bytes"], np.median(samples("ready")[0], (0, 1)).tolist(), strict=True)),
        # Around the mean of the ranks in a round, which leaves out what slows all of them.
        spread=tuple(off for steps in totals for off in ((steps / steps.mean(0) - 1) * unbiased).flatten().tolist()),
    )
    return Fit(compute, link, ranks, sweep)


def line(points) -> tuple:
    """(start, slope), neither below 0, of the line through {x: y > 0} with the least sum of squared relative errors.

    Relative errors, so that small tensors count as much as large ones.
    """
    x, y = np.array(list(points)), np.array(list(points.values()))
    slope, start = np.polyfit(x, y, 1, w=1 / y)
    if slope < 0:
        return float(np.average(y, weights=y**-2.0)), 0.0
    if start < 0:
        return 0.0, float(np.sum(x / y) / np.sum((x / y) ** 2))
    return float(start), float(slope)

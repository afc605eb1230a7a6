"""What a training step costs on n devices: computing, and what of the exchange of gradients does not hide.

    step = forward + backward, beside which buckets of gradients are exchanged + what is left of the exchange + update

Times are in seconds, sizes in bytes. The exchange is the latency–bandwidth model of collectives (Thakur, Rabenseifner
and Gropp, "Optimization of collective communication operations in MPICH", 2005, doi:10.1177/1094342005051521; the ring
in Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009,
doi:10.1016/j.jpdc.2008.09.002). How it overlaps with backward is DDP's way (Li et al., "PyTorch Distributed:
experiences on accelerating data parallel training", VLDB 2020, arXiv:2006.15704).
"""

import math
from dataclasses import dataclass, replace

from ..language import N_

LIMITS = (2**20, 25 * 2**20)  # bytes that DDP collects before it sends the first bucket, and each of the rest
HOST = 8  # devices
COMPUTE, BANDWIDTH, LATENCY = N_("compute-bound"), N_("bandwidth-bound"), N_("latency-bound")
HIDDEN = 0.1  # a step is compute-bound while the exchange (waiting, and what it takes) is at most this share of it


@dataclass(frozen=True)
class Link:
    """What it costs, in seconds, to send between two devices.

    Sending also takes computing time, which does not hide: near 0 where a network card does the work; on CPUs the
    thread that communicates needs a core and memory.
    """

    latency: float  # α, a message, however small
    per_byte: float  # β, the inverse of the bandwidth
    taken_per_byte: float = 0.0  # computing time that sending a byte of gradient takes
    copy_per_byte: float = 0.0  # into buckets and back
    broadcast: float = 0.0  # until the next device has BatchNorm's statistics, which DDP broadcasts before each forward

    @property
    def bandwidth(self) -> float:
        """Bytes a second."""
        return 1 / self.per_byte if self.per_byte else math.inf


@dataclass(frozen=True)
class Compute:
    """What one device needs for a step, and when in backward its gradients are ready."""

    forward: tuple  # (seconds a step, seconds a sample)
    backward: tuple
    update: float = 0.0  # seconds of the optimizer
    gradients: tuple = ()  # ((bytes, ready), …) in their order; ready is a share of backward, 0 to 1
    spread: tuple = ()  # of some steps, relative to the mean of all ranks: why ranks wait for another

    @property
    def bytes(self) -> int:
        """Size of all gradients together."""
        return sum(size for size, _ready in self.gradients)

    def seconds(self, batch) -> float:
        """One device alone: forward, backward, update."""
        return sum(start + slope * batch for start, slope in (self.forward, self.backward)) + self.update


@dataclass(frozen=True)
class Step:
    """A step, taken to pieces; all in seconds."""

    compute: float  # of one device alone, for its samples
    taken: float  # computing time that communicating took away
    exposed: float  # waiting for the network, after backward or before forward
    straggling: float  # waiting for the slowest rank
    latency: float  # this and the next: the two parts of the whole exchange, hidden or not
    bandwidth: float
    devices: int
    batch: float  # of a device

    @property
    def seconds(self) -> float:
        return self.compute + self.taken + self.exposed + self.straggling

    @property
    def rate(self) -> float:
        """Samples a second, all devices together."""
        return self.devices * self.batch / self.seconds

    @property
    def efficiency(self) -> float:
        """The share of the step that one device alone would need for the same samples."""
        return self.compute / self.seconds

    @property
    def regime(self) -> str:
        """What decides: computing, or else the larger part of the exchange."""
        if self.exposed + self.taken <= HIDDEN * self.seconds:
            return COMPUTE
        return LATENCY if self.latency > self.bandwidth else BANDWIDTH


def all_reduce(size, devices, link, algorithm="ring") -> tuple:
    """(latency part, bandwidth part) of an all-reduce of `size` bytes, in seconds.

    "ring": 2 (n-1) messages of size/n each, which is the least a device can send: 2 (n-1)/n of the size.
    "tree": NCCL's two binary trees, each with half of the data, whose pieces follow each other up and down: the first
    piece crosses 2 ⌈log₂ n⌉ levels, and a device sends twice the size, or n/2 times on fewer than four devices
    (src/graph/tuning.cc charges these two, too). tests/costmodel/test_messages.py compares both with every message.
    "best": whichever is faster for this size, as the libraries choose.
    """
    if size < 0 or devices < 1 or int(devices) != devices:
        raise ValueError(f"all-reduce of {size} bytes on {devices} devices: give 0 bytes or more, 1 device or more")
    hops = 2 * math.ceil(math.log2(devices))
    ring = 2 * (devices - 1) * link.latency, 2 * (devices - 1) / devices * size * link.per_byte
    tree = hops * link.latency, min(devices / 2, 2) * (devices > 1) * size * link.per_byte
    return {"ring": ring, "tree": tree, "best": min(ring, tree, key=sum)}[algorithm]


def in_hosts(size, devices, per_host, inside, between, algorithm="ring") -> tuple:
    """(latency part, bandwidth part) of a hierarchical all-reduce: links are faster inside a host than between hosts.

    A reduce-scatter inside each host, an all-reduce (by `algorithm`) of the sums between the hosts, each device
    1/per_host of them over the host's network cards, and an all-gather inside. Raises ValueError if `devices` do not
    fill the hosts.
    """
    if devices <= per_host:
        return all_reduce(size, devices, inside)
    if devices % per_host:
        raise ValueError(f"{devices} devices do not fill hosts of {per_host}; give a multiple of {per_host}")
    return added(all_reduce(size, per_host, inside), all_reduce(size, devices // per_host, between, algorithm))


def added(*costs) -> tuple:
    """(latency part, bandwidth part) of one after the other."""
    return sum(cost[0] for cost in costs), sum(cost[1] for cost in costs)


def buckets(gradients, first=LIMITS[0], rest=LIMITS[1]) -> list:
    """[(bytes, ready), …]: gradients collected as DDP does, from its second step on.

    A bucket is closed, and may be sent, once it holds at least `first` bytes (the first one) or `rest` bytes; it is
    ready when its last gradient is.
    """
    found, held, limit = [], 0, first
    for place, (size, ready) in enumerate(gradients, start=1):
        held += size
        if held >= limit or place == len(gradients):
            found.append((held, ready))
            held, limit = 0, rest
    return found


def step(
    compute, link, devices, batch, *, algorithm="best", limits=LIMITS, accumulation=1, factor=1.0, inside=None
) -> Step:
    """The cost of a step in which each of `devices` devices trains on `batch` samples.

    Args:
        limits: of DDP's first bucket and of the rest, in bytes (its bucket_cap_mb). accumulation: micro-batches of
            `batch` samples before one exchange. factor: bytes sent for a byte of gradient, 0.5 for fp16 compression.
        inside: the Link inside hosts of HOST devices; then `link` joins the hosts (see `in_hosts`).
    """
    alone = accumulation * (compute.seconds(batch) - compute.update) + compute.update
    straggling = alone * max(0.0, expected_max(compute.spread, devices) - expected_max(compute.spread, 1))
    if devices == 1:
        return Step(alone, 0.0, 0.0, 0.0, 0.0, 0.0, 1, batch * accumulation)
    sent = buckets(compute.gradients, *limits)
    sizes = [factor * size for size, _ in sent]
    costs = [all_reduce(size, devices, link, algorithm) for size in sizes]
    if inside:
        costs = [in_hosts(size, devices, HOST, inside, link, algorithm) for size in sizes]
    needs = [link.taken_per_byte * size for size in sizes]
    backward = compute.backward[0] + compute.backward[1] * batch
    taken, exposed = overlap(backward, [ready for _, ready in sent], [sum(cost) for cost in costs], needs)
    latency, bandwidth = added(*costs)
    before = math.ceil(math.log2(devices)) * link.broadcast
    taken, exposed = taken + compute.bytes * link.copy_per_byte, exposed + before
    return Step(alone, taken, exposed, straggling, latency + before, bandwidth, devices, batch * accumulation)


def overlap(backward, ready, costs, taken) -> tuple:
    """(computing time taken away while backward runs, waiting after it) for buckets sent one after the other.

    While a bucket of cost `costs[k]` is under way, backward loses the `taken[k]` seconds that sending it takes, in
    proportion; the last bucket is never sent before backward is over, so what it takes is a part of the waiting.

    Args:
        backward: seconds without communication. ready: for each bucket the share of backward at which it is complete.
    """
    free, sent = 0.0, []  # when the network is free; (begin, cost, taken) of each bucket
    for share, cost, needs in zip(ready, costs, taken, strict=True):
        begin = max(_reached(share * backward, sent), free)
        sent.append((begin, cost, min(needs, cost)))
        free = begin + cost
    end = _reached(backward, sent)
    return end - backward, max(0.0, free - end)


def _reached(goal, sent):
    """When `goal` seconds of backward are done, beside the buckets that are sent until then."""
    for begin, cost, taken in sent:
        left = goal - begin
        if left > 0:
            goal += taken if left >= cost - taken else left * taken / (cost - taken)
    return goal


def expected_max(samples, devices) -> float:
    """The mean of the largest of `devices` values, each drawn from `samples`.

    The largest of n is at most the i-th of m sorted ones with probability (i/m)ⁿ. It never exceeds the slowest step
    that was measured, and so is too low for many more devices than samples.
    """
    ordered, m = sorted(samples), len(samples)
    return sum(x * (((i + 1) / m) ** devices - (i / m) ** devices) for i, x in enumerate(ordered))


def curve(compute, link, devices, batch=None, global_batch=None, **options) -> list:
    """Steps for each number of devices: with either `batch` samples on each, or `global_batch` on all together."""
    if (batch is None) == (global_batch is None):
        raise ValueError("give either batch (samples a device) or global_batch (samples of all devices together)")
    return [step(compute, link, n, global_batch / n if batch is None else batch, **options) for n in devices]


def scaled(compute, size=1.0, speed=1.0) -> Compute:
    """The same model with `size` times the weights, and so arithmetic, on devices `speed` times as fast."""
    work = size / speed
    forward, backward = (tuple(part * work for part in line) for line in (compute.forward, compute.backward))
    gradients = tuple((part * size, ready) for part, ready in compute.gradients)
    return replace(compute, forward=forward, backward=backward, update=compute.update * work, gradients=gradients)

"""What a GPT needs and costs when it is split: memory of a device, bytes sent, seconds of a step.

Sizes in bytes, times in seconds, in mixed precision (2 bytes a number) with Adam. The formulas:

- memory: 2 bytes a parameter for the weight, 2 for its gradient, 12 for Adam and a 32-bit copy. ZeRO shards the last,
  the last two, or all three (arXiv:1910.02054, section 3); FSDP is the third.
- activations: for each token and block 2 + 14/t numbers of the width with t tensor-parallel ranks, which share norms
  and residuals (arXiv:2205.05198, section 4, has 16/t: it gathers two inputs again in backward that PyTorch keeps;
  without dropout's masks and attention's scores). Recomputed: 1, the block's input, and all of the block in backward.
- tensor parallelism: 2 all-reduces forward and 2 backward in each block, for which all wait (arXiv:1909.08053); 1 more
  where the block is recomputed, since PyTorch stops before its last product, whose result is not needed.
- a pipeline of p stages and m micro-batches is idle for (p-1)/(m+p-1) of a step (GPipe, arXiv:1811.06965); with 1F1B
  its first stage keeps min(m, p) of them (arXiv:2104.04473, section 2.2).
- data parallelism: an all-reduce of the gradients. ZeRO-1 is a reduce-scatter and an all-gather, as in ZeRO's section 7
  and Megatron-LM, and sends as much (PyTorch's ZeroRedundancyOptimizer: an all-reduce and a broadcast, 1.5 times that).
  ZeRO-2 reduces gradients after each micro-batch, FSDP sends 1.5 times as much, and for each micro-batch. It hides
  behind backward, FSDP's behind all computing: as well as it can.
- arithmetic: 6 operations a parameter and token, and 12 · layers · width · length a token for attention (PaLM,
  arXiv:2204.02311, appendix B). Recomputing: the forward of the blocks once more, without their last product.
"""

import itertools
from dataclasses import dataclass
from typing import NamedTuple

from .model import HOST, Step, added, all_reduce
from .published import BACKWARD, load

NUMBER, WEIGHT, GRADIENT, ADAM = 2, 2, 2, 12  # bytes
ROOM = 0.9  # the share of a device's memory that a layout may fill; the rest is for buffers and fragments
POWERS = tuple(2**k for k in range(11))


class CannotSplit(ValueError):
    """The model cannot be shared out like this; the message says by what, and what to choose instead."""


def share_evenly(count, things, by, whom) -> int:
    """How many of `count` things each gets. Raises CannotSplit where they cannot be shared evenly."""
    if isinstance(by, bool) or not isinstance(by, int) or by < 1:
        raise CannotSplit(f"{by!r} {whom}: give a whole number, 1 or more")
    if count % by:
        fitting = " or ".join(str(n) for n in range(1, count + 1) if count % n == 0)
        raise CannotSplit(f"{count} {things} cannot be shared evenly by {by} {whom}; choose {fitting} of them")
    return count // by


@dataclass(frozen=True)
class Transformer:
    """The shape of `helpers.training.gpt`; one sequence has `length` tokens."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    length: int

    @property
    def block(self) -> int:
        """Parameters of a block."""
        return 12 * self.width**2 + 13 * self.width

    @property
    def embedding(self) -> int:
        return (self.vocabulary + self.length) * self.width

    @property
    def head(self) -> int:
        return (self.vocabulary + 2) * self.width

    @property
    def parameters(self) -> int:
        return self.layers * self.block + self.embedding + self.head

    @property
    def operations(self) -> int:
        """Arithmetic operations a sequence, forward and backward."""
        return self.length * (6 * self.parameters + 12 * self.layers * self.width * self.length)

    @property
    def operations_again(self) -> int:
        """Those that recomputing adds."""
        return self.length * self.layers * (2 * (self.block - 4 * self.width**2) + 4 * self.width * self.length)


class Device(NamedTuple):
    """What a device offers."""

    memory: float  # bytes
    speed: float  # operations a second that a training reaches


def device(name="H100 SXM", reached=0.5) -> Device:
    """A device of recorded/published/devices.json; a training reaches this share of its peak."""
    of = load("devices")["devices"][name]
    return Device(of["memory"], reached * of["operations"])


@dataclass(frozen=True)
class Layout:
    """How the devices share a model and a batch."""

    data: int = 1  # groups with a share of the batch each
    tensor: int = 1  # ranks that share each layer
    pipeline: int = 1  # stages
    zero: int = 0  # what data-parallel ranks shard: 0 nothing (DDP), 1 optimizer, 2 also gradients, 3 all (FSDP)
    micro_batches: int = 1  # pieces of a group's batch, one after the other
    recompute: bool = False  # each block's activations in backward, from its input

    @property
    def devices(self) -> int:
        return self.data * self.tensor * self.pipeline

    @property
    def name(self) -> str:
        way = ("DDP", "ZeRO-1", "ZeRO-2", "FSDP")[self.zero]
        sizes = ((way, self.data), ("tensor", self.tensor), ("pipeline", self.pipeline))
        named = [f"{what} {size}" for what, size in sizes if size > 1] or ["one device"]
        return " · ".join(named + ["recomputed"] * self.recompute)

    def check(self, model, batch) -> None:
        """Raises CannotSplit where the model, or a batch of so many sequences, cannot be shared out evenly."""
        share_evenly(model.heads, "heads", self.tensor, "tensor-parallel ranks")
        share_evenly(model.layers, "blocks", self.pipeline, "pipeline stages")
        each = share_evenly(batch, "sequences", self.data, "data-parallel groups")
        share_evenly(each, "sequences of a group", self.micro_batches, "micro-batches")


def memory(model, layout, batch) -> dict:
    """{kind: bytes} on the device that needs most: the first or the last stage. `batch`: sequences of all devices."""
    layout.check(model, batch)
    alone = layout.pipeline == 1
    first = _of_stage(model, layout, batch, model.embedding + model.head * alone, loss=alone)
    last = first if alone else _of_stage(model, layout, batch, model.head, loss=True)
    return max(first, last, key=lambda kinds: sum(kinds.values()))


def _of_stage(model, layout, batch, extra, loss):
    """Memory of the first stage, or of the last, which has the `loss`. extra: parameters beside the blocks."""
    mine = (model.layers // layout.pipeline * model.block + extra) / layout.tensor  # before the data ranks shard them
    tokens = batch // layout.data // layout.micro_batches * model.length
    kept = 1 if loss else min(layout.micro_batches, layout.pipeline)  # micro-batches in memory at once
    blocks, of_block = kept * model.layers // layout.pipeline, 2 + 14 / layout.tensor
    activations = (blocks + of_block if layout.recompute else blocks * of_block) * tokens * model.width * NUMBER
    if loss:  # the scores in 32 bits, and their gradient
        activations += 8 * tokens * model.vocabulary / layout.tensor
    shards = [layout.data if layout.zero >= stage else 1 for stage in (1, 2, 3)]
    gathered = 2 * model.block / layout.tensor if layout.zero == 3 else 0  # this block, and the next on its way
    return {
        "parameters": WEIGHT * (mine / shards[2] + gathered),
        "gradients": GRADIENT * (mine / shards[1] + gathered / 2),
        "optimizer state": ADAM * mine / shards[0],
        "activations": activations,
    }


def sent(model, layout, batch) -> dict:
    """{kind: bytes of the tensors} that a device brings to collectives, or sends on, in a step."""
    layout.check(model, batch)
    micro = batch // layout.data // layout.micro_batches * model.length * model.width * NUMBER
    gradients = GRADIENT * model.parameters / layout.pipeline / layout.tensor
    rounds = (1, 1, (1 + layout.micro_batches) / 2, 1.5 * layout.micro_batches)[layout.zero]
    return {
        "data": rounds * gradients * (layout.data > 1),
        "tensor": _all_reduces(model, layout) * micro * (layout.tensor > 1),
        "pipeline": 2 * layout.micro_batches * micro * (layout.pipeline > 1),
    }


def _all_reduces(model, layout):
    """Of a tensor-parallel rank in a step."""
    return (5 if layout.recompute else 4) * layout.micro_batches * (model.layers // layout.pipeline)


def step(model, layout, batch, device, inside, between) -> Step:
    """The step of a layout: hosts of HOST devices, joined by a network card each; `inside` and `between` are Links.

    Tensor-parallel ranks are neighbours, then come data-parallel ones, then stages. Of the Step, `taken` is what is
    computed again, and `straggling` the pipeline's bubble.
    """
    compute, again = (
        batch * operations / layout.devices / device.speed
        for operations in (model.operations, layout.recompute * model.operations_again)
    )
    size, m = sent(model, layout, batch), layout.micro_batches
    near = min(layout.data, max(1, HOST // layout.tensor))  # data-parallel ranks of a group in a host
    through_card = size["data"] * min(layout.tensor, HOST)
    data = added(all_reduce(size["data"], near, inside), all_reduce(through_card, layout.data // near, between))
    messages, bandwidth = all_reduce(size["tensor"], layout.tensor, inside if layout.tensor <= HOST else between)
    tensor = _all_reduces(model, layout) * messages, bandwidth
    far = inside if layout.devices <= HOST else between
    pipeline = 2 * m * (layout.pipeline > 1) * far.latency, size["pipeline"] * far.per_byte
    backward = BACKWARD * compute + again
    hidden = (backward / m, backward / m, backward, compute + again)[
        layout.zero
    ]  # DDP sends after the last micro-batch
    exposed = sum(tensor) + sum(pipeline) + max(0.0, sum(data) - hidden)
    bubble = (compute + again + sum(tensor)) * (layout.pipeline - 1) / m
    exchange = added(data, tensor, pipeline)
    return Step(compute, again, exposed, bubble, *exchange, layout.devices, batch / layout.devices)


def layouts(model, devices, batch):
    """All layouts of so many devices in powers of two that share out heads, blocks and batch evenly."""
    for tensor, pipeline, zero in itertools.product(POWERS, POWERS, range(4)):
        data = devices // (tensor * pipeline)
        if tensor > HOST or data * tensor * pipeline != devices or model.heads % tensor or model.layers % pipeline:
            continue
        if zero and data == 1:
            continue
        for micro, recompute in itertools.product(POWERS, (False, True)):
            if batch % (data * micro) == 0:
                yield Layout(data, tensor, pipeline, zero, micro, recompute)


def fastest(model, devices, batch, device, inside, between, only=lambda layout: True):
    """(layout, its Step) of the fastest that fits into memory, of those for which `only` is true; None if none fits."""
    steps = (
        (layout, step(model, layout, batch, device, inside, between))
        for layout in layouts(model, devices, batch)
        if only(layout) and sum(memory(model, layout, batch).values()) <= ROOM * device.memory
    )
    return min(steps, key=lambda pair: (round(pair[1].seconds, 6), pair[0].zero, pair[0].micro_batches), default=None)

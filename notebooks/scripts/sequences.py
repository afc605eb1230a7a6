"""Long sequences: which rank has which positions, a block of a GPT that takes any attention, what a rank sends."""

import statistics
import time
from collections import Counter

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import helpers
from helpers import device
from helpers.costmodel.splitting import share_evenly
from helpers.training import gpt


def contiguous(length, ranks) -> list:
    """The positions of each rank: one piece after the other. Raises CannotSplit where they cannot be of one size."""
    share_evenly(length, "positions", ranks, "ranks")
    return list(torch.arange(length).chunk(ranks))


def zigzag(length, ranks) -> list:
    """As `contiguous`, in twice as many pieces: rank r has piece r from the front and piece r from the back."""
    share_evenly(length, "positions", ranks, "ranks")
    share_evenly(length, "positions", 2 * ranks, "pieces, two for each rank")
    pieces = torch.arange(length).chunk(2 * ranks)
    return [torch.cat((pieces[rank], pieces[-1 - rank])) for rank in range(ranks)]


def check_heads(heads, ranks) -> int:
    """How many heads a rank has after Ulysses' exchange. Raises CannotSplit where that is not a whole number."""
    return share_evenly(heads, "heads", ranks, "ranks of Ulysses")


def pairs(order) -> list:
    """[rank][step]: how many pairs (position, one that it may look at) are in the block that a rank meets in a step."""
    ranks = range(len(order))
    return [[int((order[r][:, None] >= order[(r - step) % len(order)]).sum()) for step in ranks] for r in ranks]


class Sent(TorchDispatchMode):
    """Counts in `bytes` what this rank asks its backend to send to others, by kind of call."""

    def __init__(self):
        super().__init__()
        self.bytes = Counter()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op.name() == "c10d::send":
            self.bytes["send"] += sum(tensor.nbytes for tensor in args[0])
        elif op.name() == "c10d::alltoall_base_":
            n = dist.get_world_size()
            self.bytes["all-to-all"] += args[1].nbytes * (n - 1) // n  # a rank keeps the part that is its own
        elif op.name() == "c10d::allreduce_":
            n = dist.get_world_size()
            self.bytes["all-reduce"] += sum(tensor.nbytes for tensor in args[0]) * 2 * (n - 1) // n  # in a ring
        return op(*args, **(kwargs or {}))


def whole(shape, seed=0, dtype=torch.float64, where="cpu"):
    """(q, k, v, gradient of the output) of a whole sequence, the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=dtype).to(where) for _ in range(4)]


def beside_one_process(attend, order, shape=(2, 4, 48, 8)):
    """On every rank: (how far output and gradients are from fused attention on all positions, bytes sent by kind).

    Args:
        attend: function of (q, k, v) of this rank's positions and the order.
        shape: batch, heads, positions, width of a head.
    """
    with helpers.distributed() as world:
        order = [at.to(world.device) for at in order]
        *qkv, towards = whole(shape, where=world.device)
        alone = [tensor.clone().requires_grad_() for tensor in qkv]
        output = F.scaled_dot_product_attention(*alone, is_causal=True)
        wanted = [output, *torch.autograd.grad(output, alone, towards)]
        at = order[world.rank]
        mine = [tensor[:, :, at].requires_grad_() for tensor in qkv]
        with Sent() as sent:
            output = attend(*mine, order)
            found = [output, *torch.autograd.grad(output, mine, towards[:, :, at])]
        apart = max((a - b[:, :, at]).abs().max().item() for a, b in zip(found, wanted, strict=True))
        return apart, dict(sent.bytes)


def seconds(ways, shape, turns=7):
    """On every rank: {name: s of each forward and backward, the slowest rank's}; the ways take turns.

    Args:
        ways: {name: (attend, order)}. shape: as of `beside_one_process`.
    """
    with helpers.distributed() as world:
        *qkv, towards = whole(shape, dtype=torch.float32, where=world.device)
        found = {name: [] for name in ways}
        for turn in range(turns + 1):
            for name in list(ways)[:: 1 - 2 * (turn % 2)]:
                attend, order = ways[name][0], [at.to(world.device) for at in ways[name][1]]
                mine = [tensor[:, :, order[world.rank]].requires_grad_() for tensor in qkv]
                dist.barrier()
                began = time.perf_counter()
                attend(*mine, order).backward(towards[:, :, order[world.rank]])
                device.synchronize(world.device)
                took = torch.tensor(time.perf_counter() - began, device=world.device)
                dist.all_reduce(took, dist.ReduceOp.MAX)
                found[name].append(took.item())
        return {name: taken[1:] for name, taken in found.items()}


def median_ratio(slow, fast):
    """The median of the ratios of two lists of seconds, and their (least, most)."""
    ratios = sorted(a / b for a, b in zip(slow, fast, strict=True))
    return statistics.median(ratios), (ratios[0], ratios[-1])


class Attention(gpt.Attention):
    """GPT's attention, with `attend(q, k, v)` in the place of PyTorch's."""

    def __init__(self, width, heads, attend):
        super().__init__(width, heads, causal=True)
        self.attend = attend

    def forward(self, x):
        n, length, _ = x.shape
        q, k, v = self.qkv(x).view(n, length, -1, 3, self.width_of_head).permute(3, 0, 2, 1, 4)
        return self.out(self.attend(q, k, v).transpose(1, 2).reshape(n, length, -1))


WIDTH, HEADS = 128, 2


def train_block(attend, order, steps=1, heads=HEADS):
    """On every rank: a block of a GPT makes `steps` training steps on this rank's part of one sequence."""
    with helpers.distributed() as world:
        order = [at.to(world.device) for at in order]
        torch.manual_seed(0)
        block = gpt.Block(WIDTH, heads).to(world.device)
        block.attention = Attention(WIDTH, heads, lambda *qkv: attend(*qkv, order)).to(world.device)
        optimizer = torch.optim.SGD(block.parameters(), lr=0.1, foreach=False)
        x = torch.randn(1, len(order[world.rank]), WIDTH, device=world.device)
        for _ in range(steps):
            block(x).square().mean().backward()
            for parameter in block.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()


def plain(q, k, v, order):
    """Attention on one rank as textbooks write it: all scores at once, kept for backward."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v


def fused(q, k, v, order):
    """PyTorch's attention on one rank, which keeps no scores."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)

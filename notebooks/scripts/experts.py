"""Experts shared out among ranks: the layer beside a loop over all experts, a training with one, its messages' time."""

import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import helpers
from helpers import device
from helpers.cluster import twohosts
from helpers.costmodel.splitting import CannotSplit, share_evenly
from helpers.data import sets
from helpers.training.gpt import MLP

from .sequences import Sent


def check(experts, ranks, capacity) -> int:
    """How many experts each rank has. Raises CannotSplit where they cannot be shared evenly or nothing has room."""
    each = share_evenly(experts, "experts", ranks, "ranks")
    if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
        raise CannotSplit(f"capacity {capacity!r}: an expert takes a whole number of tokens from a rank, 1 or more")
    return each


def dense(x, weights, chosen, kept, experts):
    """The layer without a message: each expert computes all tokens [tokens, width], and few of the results are used."""
    use = weights * kept  # [tokens, 2]
    return sum((use * (chosen == number)).sum(-1, keepdim=True) * expert(x) for number, expert in enumerate(experts))


def beside_one_process(route, layer, experts=4, capacity=24, tokens=12, width=6):
    """On every rank: (how far output and all gradients are from `dense` with the tokens of all ranks, share of the
    choices that were dropped, bytes sent). The loss is the sum of the squares of the output."""
    with helpers.distributed() as world:
        rank, n = world.rank, world.size
        each = check(experts, n, capacity)
        torch.manual_seed(0)
        router, *every = (
            module.double().to(world.device)
            for module in [nn.Linear(width, experts)] + [MLP(width) for _ in range(experts)]
        )
        x = torch.randn(n, tokens, width, dtype=torch.float64, device=world.device)
        mine, my_experts = x[rank].clone().requires_grad_(), every[rank * each :][:each]
        leaves = [mine, *router.parameters(), *(p for expert in my_experts for p in expert.parameters())]
        with Sent() as sent:
            weights, chosen, _ = route(mine, router)
            output, kept = layer(mine, weights, chosen, my_experts, capacity)
            found = torch.autograd.grad(output.square().sum(), leaves)
        for gradient in found[1:3]:  # the router is a copy on each rank; an expert has the tokens of all ranks
            dist.all_reduce(gradient)
        dist.all_gather(all_kept := [torch.empty_like(kept) for _ in range(n)], kept)
        x.requires_grad_()
        outputs = [dense(x[r], *route(x[r], router)[:2], all_kept[r], every) for r in range(n)]
        of_x, *wanted = torch.autograd.grad(sum(o.square().sum() for o in outputs), [x, *leaves[1:]])
        couples = zip([output, *found], [outputs[rank], of_x[rank], *wanted], strict=True)
        return max((a - b).abs().max().item() for a, b in couples), 1 - kept.double().mean().item(), dict(sent.bytes)


class Words(nn.Module):
    """Two words in, scores of the next one out, through one layer of experts; `experts` are those of this rank."""

    def __init__(self, words, width, experts, each):
        super().__init__()
        self.embedding, self.router = nn.Embedding(words, width // 2), nn.Linear(width, experts, bias=False)
        self.experts, self.head = nn.ModuleList(MLP(width) for _ in range(each)), nn.Linear(width, words)


LAST = 10  # steps whose loads are counted


def train(route, layer, balance_loss, share, experts=8, width=32, steps=40, sequences=4):
    """Train `Words` on every rank, nothing dropped; on each: (mean loss of the last steps, choices of each expert).

    Args:
        share: of the balance loss in what is minimised.
    """
    with helpers.distributed() as world:
        each = check(experts, world.size, 1)
        data = sets.load("tokens", "train")
        torch.manual_seed(0)
        model = Words(len(data.classes), width, experts, each).to(world.device)
        torch.manual_seed(world.rank)
        for expert in model.experts:  # other weights on each rank
            expert.load_state_dict(MLP(width).state_dict())
        copies = [p for name, p in model.named_parameters() if not name.startswith("experts")]
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        losses, loads = [], torch.zeros(experts, device=world.device)
        for step in range(steps):
            first = (step * world.size + world.rank) * sequences
            rows = torch.arange(first, first + sequences) % len(data.tokens)
            tokens = data.tokens[rows].long().to(world.device)
            pairs = model.embedding(tokens[:, :-1].unfold(1, 2, 1)).flatten(0, 1).flatten(1)  # [tokens, width]
            weights, chosen, probabilities = route(pairs, model.router)
            output, _ = layer(pairs, weights, chosen, model.experts, len(pairs))  # room for all
            loss = F.cross_entropy(model.head(pairs + output), tokens[:, 2:].flatten())
            (loss + share * balance_loss(probabilities, chosen)).backward()
            for copy in copies:
                dist.all_reduce(copy.grad)
            for parameter in model.parameters():
                parameter.grad /= world.size  # experts, too: they have the sum of all ranks' mean gradients
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if step >= steps - LAST:
                loads += F.one_hot(chosen, experts).sum((0, 1))
        dist.all_reduce(loads)
        dist.all_reduce(loss := torch.tensor(sum(losses[-LAST:]) / LAST, device=world.device))
        return loss.item() / world.size, loads.long().tolist()


class Layer(nn.Module):
    """A router and this rank's experts; without `layer`, all experts on one rank and no message."""

    def __init__(self, route, layer, width, experts, each):
        super().__init__()
        self.router, self.experts = nn.Linear(width, experts), nn.ModuleList(MLP(width) for _ in range(each))
        self.route, self.layer = route, layer

    def forward(self, x):
        weights, chosen, _ = self.route(x, self.router)
        if self.layer:
            return self.layer(x, weights, chosen, self.experts, len(x))[0]  # room for all
        return dense(x, weights, chosen, torch.ones_like(chosen), self.experts)


def train_layer(route, layer, steps=1, experts=8, tokens=512, width=128):
    """On every rank: s of the fastest training step of a layer of experts.

    Args:
        layer: None for `dense`, on one rank. tokens: on all ranks together.
    """
    with helpers.distributed() as world:
        each, took = check(experts, world.size, 1), []
        torch.manual_seed(world.rank)
        model = Layer(route, layer, width, experts, each).to(world.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        x = torch.randn(tokens // world.size, width, device=world.device)
        for _ in range(steps):
            dist.barrier()
            began = time.perf_counter()
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            device.synchronize(world.device)
            took.append(time.perf_counter() - began)
        return min(took)


def times(both, megabytes=1.0, tokens=512, width=256, turns=9):
    """On every rank: (s of computing a shared expert, s of the all-to-all, s of `both` at once), medians.

    Args:
        both: function of (parts to send, tokens, the shared expert). megabytes: what a rank sends to each other one.
    """
    with helpers.distributed() as world:
        torch.manual_seed(0)
        shared, x = MLP(width).to(world.device), torch.randn(tokens, width, device=world.device)
        parts = torch.randn(world.size, int(megabytes * 1e6 / 4), device=world.device)
        ways = (
            lambda: shared(x),
            lambda: dist.all_to_all_single(torch.empty_like(parts), parts),
            lambda: both(parts, x, shared),
        )
        found = [[], [], []]
        with torch.no_grad():
            for _turn in range(turns + 1):
                for place, way in enumerate(ways):
                    dist.barrier()
                    began = time.perf_counter()
                    way()
                    found[place].append(time.perf_counter() - began)
        return tuple(statistics.median(taken[1:]) for taken in found)


def over_a_link(both, rate, **options):
    """`times` on rank 0 of two emulated hosts, whose link carries `rate` megabits a second. ValueError without one."""
    if rate is None:
        raise ValueError("rate is None: a link without a limit has no speed to compare; give its megabits a second")
    return twohosts.run(times, both, rate=rate, timeout=300, **options)[0]

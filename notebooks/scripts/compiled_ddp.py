"""The compiler and DDP, on a rank: how many graphs, when the messages of a step leave, what `optimize` chooses."""

import logging
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from helpers.compiler import Plan, optimize
from helpers.data import sets
from helpers.training import models


class Deep(nn.Module):
    """Seven linear layers, whose gradients fill five or six buckets of 1 MB."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        wide = [layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.SiLU())]
        first = nn.Flatten(), nn.Linear(3072, 128), nn.SiLU(), nn.Linear(128, 512)
        self.body = nn.Sequential(*first, *wide, nn.Linear(512, 10))

    def forward(self, images):
        return self.body(images)


def digits():
    found = sets.load("digits", "train")
    return found.images.float() / 255 - 0.5, found.labels


def trained(build, world, cut=True, steps=6):
    """Train what `build(net, DDP, compiled)` makes of a Deep.

    Args:
        cut: whether Dynamo may cut the graph where a bucket ends.

    Returns:
        (losses, graphs, and for each step when messages left and when backward ended, in ms from its start)
    """
    torch._logging.set_logs(all=logging.ERROR)
    torch._dynamo.reset()
    torch._dynamo.config.optimize_ddp = cut
    graphs, left, times, losses = [], [], [], []

    def counting(graph, inputs):
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    def hook(state, bucket):
        left.append(time.perf_counter())
        return allreduce_hook(None, bucket)

    def wrap(net):
        wrapped = DistributedDataParallel(net, bucket_cap_mb=1)
        wrapped.register_comm_hook(None, hook)
        return wrapped

    net = Deep().to(world.device)
    model = build(net, wrap, lambda model: torch.compile(model, backend=counting))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    images, labels = digits()
    for step in range(steps):
        first = 256 * world.rank + 16 * step
        part, wanted = (of[first : first + 128].to(world.device) for of in (images, labels))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(part), wanted)
        left.clear()
        began = time.perf_counter()
        loss.backward()
        *sent, ended = (1000 * (at - began) for at in (*left, time.perf_counter()))
        times.append((sent, ended))
        optimizer.step()
        losses.append(loss.item())
    return losses, len(graphs), times


def tuned(optimize_first, world):
    """(the plan that `optimize` chose before or after wrapping, whether a checkpoint keeps its names)"""
    torch._dynamo.reset()
    net = models.build("resnet8", classes=10).to(world.device)
    names = list(net.state_dict())
    model = net if optimize_first else DistributedDataParallel(net)
    optimize(model, [Plan("aot_eager")], rounds=1, log=None)
    if optimize_first:
        model = DistributedDataParallel(net)
    images, labels = digits()
    parts = (of.split(16)[world.rank : 20 : 2] for of in (images, labels))
    for part, wanted in zip(*parts, strict=True):
        F.cross_entropy(model(part.to(world.device)), wanted.to(world.device)).backward()
    return str(net.tuner.choice), list(net.state_dict()) == names

"""Notebook 03 and its depth: small networks, a batch of digits, and ways to average gradients over the ranks.

A way takes a model and a `World` and returns what to call in place of the model, and what to call after backward.
"""

import time
from functools import cache, partial
from itertools import pairwise

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import helpers
from helpers.data import sets
from helpers.training import models

resnet8 = partial(models.build, "resnet8", classes=10)


def small_net(norm=nn.BatchNorm2d):
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), norm(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 15 * 15, 10))


def ddp(model, world, **options):
    ids = None if world.device.type == "cpu" else [world.local_rank]
    return DistributedDataParallel(model, device_ids=ids, **options), lambda: None


def naive(model, world):
    def average():
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world.size

    return model, average


def no_messages(model, world):
    return model, lambda: None


@cache
def digits():
    """64 images of -0.5 to 0.5 and their labels."""
    sets.ensure("digits")
    part = sets.load("digits", "train")
    return part.images[:64].double() / 255 - 0.5, part.labels[:64]


def piece(world, dtype=torch.float32, pieces=None):
    """This rank's share of the 64 digits, one of `pieces`."""
    images, labels = (half.chunk(pieces or world.size)[world.rank].to(world.device) for half in digits())
    return images.to(dtype), labels


def gradients(way, make_model, dtype=torch.float64):
    """On a rank: forward and backward on its piece; the gradients, averaged in this way."""
    torch.backends.cudnn.deterministic = True  # on GPUs: the same algorithms every time
    with helpers.distributed() as world:
        torch.manual_seed(0)  # the naive way broadcasts nothing
        model = make_model().to(world.device, dtype)
        wrapped, finish = way(model, world)
        images, labels = piece(world, dtype)
        F.cross_entropy(wrapped(images), labels).backward()
        finish()
        return [p.grad.cpu() for p in model.parameters()]


def furthest(some, others):
    """The largest difference of two lists of tensors."""
    return max((a - b).abs().max().item() for a, b in zip(some, others, strict=True))


def train_with(way, steps=16, pieces=None):
    """On a rank: seconds of each step on its piece."""
    with helpers.distributed() as world:
        torch.manual_seed(0)
        model, (images, labels) = resnet8().to(world.device), piece(world, pieces=pieces)
        wrapped, finish = way(model, world)
        optimizer, clock = torch.optim.SGD(model.parameters(), lr=0.05), [time.perf_counter()]
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(wrapped(images), labels).backward()
            finish()
            optimizer.step()
            clock.append(time.perf_counter())
        return [end - start for start, end in pairwise(clock)]

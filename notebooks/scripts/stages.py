"""The four stages of data parallel training, on a rank: a training to time, and a clock for its stages."""

import time
from contextlib import contextmanager

import torch

import platforms.horovod.torch as hvd
from helpers import device
from helpers.data import loaders, sets
from helpers.training import models


def training(mine, batch=64):
    """(digits, this rank's part of each global batch, resnet8 on the device `mine`, its wrapped optimizer)"""
    data, model = sets.load("digits", "train"), models.build("resnet8", classes=10).to(mine)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    return data, loaders.GlobalBatchSampler(len(data), batch, hvd.rank(), hvd.size()), model, optimizer


class Clock:
    """`with clock("split"):` notes (stage, begin, end) in `stamps`, in milliseconds, once the device is done."""

    def __init__(self, mine):
        self.mine, self.stamps = mine, []

    @contextmanager
    def __call__(self, stage):
        began = time.monotonic()
        yield
        device.synchronize(self.mine)
        self.stamps.append((stage, 1000 * began, 1000 * time.monotonic()))

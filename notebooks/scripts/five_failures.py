"""Five failures on two CPU ranks, each shown by its symptom. The exercise of notebook 11 asks for the causes.

To solve it, do not read on: look at what `symptoms()` prints.
"""

import os
import signal
import traceback

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

import helpers
from helpers import launch


def symptoms():
    """Make each of the five fail, and print what its reader would see."""
    for letter, show in {"A": _stands_still, "B": _ends, "C": _repeats, "D": _differs, "E": _drifts}.items():
        print(f"{letter}. {show()}")


def _stands_still():
    stacks = launch(_train_and_validate, 2, timeout=120, threads=1, env={"HELPERS_DEVICE": "cpu"})
    stands = "; ".join(f"rank {rank} in {' → '.join(names)}" for rank, names in enumerate(stacks))
    return f"Nothing moves after the first step. py-spy shows {stands}."


def _train_and_validate():
    def train_step():
        model(torch.randn(4, 8)).square().mean().backward()

    def validate():
        model(torch.randn(4, 8))
        dist.barrier()

    with helpers.distributed("cpu", timeout=5) as world:
        model = DistributedDataParallel(nn.Linear(8, 1))
        train_step()
        try:
            if world.rank == 0:
                validate()
            train_step()
        except RuntimeError as error:  # the time of the group is up
            names = [of.name for of in traceback.extract_tb(error.__traceback__) if of.name != "wrapper"]
            return names[1:3]


def _ends():
    try:
        launch(_is_ended, 2, timeout=120, threads=1, env={"HELPERS_DEVICE": "cpu"})
    except helpers.RankError as error:
        return f"In step 812: rank {error.rank} has ended with {signal.Signals(-error.exitcode).name}, no traceback."


def _is_ended():
    with helpers.distributed("cpu") as world:
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1))


def _repeats():
    sampler = DistributedSampler(range(16), 2, rank=0, seed=1)
    epochs = [", ".join(map(str, list(sampler)[:4])) for _ in range(3)]
    return "The first samples of rank 0 in three epochs: " + "; ".join(epochs)


def _differs():
    found = {n: launch(_test, n, timeout=120, threads=1, env={"HELPERS_DEVICE": "cpu"})[0] for n in (1, 2, 4)}
    return "The same saved model is tested: " + ", ".join(
        f"{100 * of:.1f} % with {n} rank(s)" for n, of in found.items()
    )


def _test():
    right = torch.rand(200, generator=torch.Generator().manual_seed(3)) < 0.9
    with helpers.distributed("cpu") as world:
        mine = right[world.rank :: world.size]
        return mine.float().mean().item()


def _drifts():
    first, last = zip(*launch(_train_apart, 2, timeout=120, threads=1, env={"HELPERS_DEVICE": "cpu"}), strict=True)
    apart = [(one - other).abs().max().item() for one, other in (first, last)]
    return f"Weights of the two ranks differ by {apart[0]:.3f} before the first step and by {apart[1]:.3f} after ten."


def _train_apart():
    with helpers.distributed("cpu") as world:
        torch.manual_seed(0)
        net = nn.Linear(8, 3)
        model = DistributedDataParallel(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        first = net.weight.detach().clone()
        data = torch.Generator().manual_seed(world.rank)
        for _ in range(10):
            inputs, labels = torch.randn(16, 8, generator=data), torch.randint(3, (16,), generator=data)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
        return first, net.weight.detach()

"""What ranks of tests/xla/test_xla.py run, some of them in the XLA environment, where there is no pytest."""

import importlib

import torch
from torch import nn

import helpers
from platforms.xla import loop


def smooth():
    """A network on which rounding does not grow from step to step."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 64), nn.SiLU(), nn.Linear(64, 10))


def exact():
    """Convolutions and BatchNorm, in double precision: in fp32 ten steps amplify rounding to 1e-3, whoever computes."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(392, 10),
    ).double()


def several_steps(which, batches=5):
    """Train with ddp_step or xla_step; this rank's losses and all its weights."""
    step = importlib.import_module(f"platforms.xla.{which}_step")
    with helpers.distributed("cpu") as world:
        torch.manual_seed(0)
        model, optimizer = step.prepare(smooth(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        torch.manual_seed(1 + world.rank)
        losses = [
            step.step(model, optimizer, torch.randn(8, 3, 32, 32), torch.randint(10, (8,))) for _ in range(batches)
        ]
        return losses, torch.cat([p.detach().cpu().flatten() for p in model.parameters()])


def without_average(config):
    """The XLA loop with its reduction left out."""
    from platforms.xla import gradients

    gradients.average = lambda gradients: None
    return loop.train(config)


def compilations_of(sizes):
    from platforms.xla import compilations

    return compilations.of_batches(sizes)


def join(method, checked):
    """How many ranks a group of XLA's own has, and what a sum over them gives."""
    import torch.distributed as dist
    import torch_xla
    import torch_xla.distributed.xla_backend

    from platforms.xla.gradients import join_xla_group

    if checked:
        join_xla_group(method)
    else:
        dist.init_process_group("xla", init_method=method)
    total = torch.ones(1, device=torch_xla.device())
    dist.all_reduce(total)
    return dist.get_world_size(), total.item()

"""Cases of platforms.horovod.ddp: torch's DistributedDataParallel bit for bit, and with compressed gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import platforms.horovod.ddp as dist

from .lab import case


def network():
    """Gradients of every kind: matrices, kernels, vectors, and one that stays zero for ever."""
    torch.manual_seed(0)
    first = [nn.Conv2d(1, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.Flatten(), nn.Linear(432, 96), nn.ReLU()]
    return nn.Sequential(*first, nn.Linear(96, 64), nn.Tanh(), nn.Linear(64, 4))


def train(wrap, steps=20, lr=0.05, spoil=None, **options):
    """Losses of this rank and all weights after some steps, each on other images of four classes."""
    model = wrap(network(), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    random = torch.Generator().manual_seed(dist.get_rank())
    centres = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(9))
    losses = []
    for step in range(steps):
        labels = torch.randint(0, 4, (16,), generator=random)
        images = centres[labels] + torch.randn(16, 1, 8, 8, generator=random)
        if step == spoil and dist.get_rank() == 0:
            images[:] = float("inf")
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        if all(torch.isfinite(p.grad).all() for p in model.parameters()):  # as a GradScaler would decide
            optimizer.step()
        losses.append(loss.item())
    return losses, torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def same_everywhere(tensor):
    """Whether all ranks hold the same bits."""
    everyone = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, tensor)
    return all(torch.equal(tensor, other) for other in everyone)


@case("ddp", least=2)
def losses_and_weights_of_all_methods():
    dist.init_process_group("gloo")
    stock = torch.nn.parallel.DistributedDataParallel
    ours = dist.DistributedDataParallel
    small = {"bucket_cap_mb": 0.02}  # several buckets
    losses, weights = train(stock, **small)
    again, same = train(ours, **small)
    assert losses == again and torch.equal(weights, same)
    assert isinstance(ours(network()), stock)
    for method, bound in (("fp16", 2e-3), ("bf16", 2e-2)):
        half_losses, half = train(ours, compression=method, **small)
        assert half_losses != losses and same_everywhere(half)
        assert torch.dist(half, weights) / weights.norm() < bound
    for low, cap in ((1, 0.02), (4, 25)):
        options = {"compression": "powersgd", "powersgd_rank": low, "powersgd_start": 3}
        few, few_weights = train(ours, steps=40, bucket_cap_mb=cap, **options)
        assert same_everywhere(few_weights) and sum(few[-5:]) < sum(few[:5]) / 2
        # Full gradients first; three ranks are added in an order that depends on how buckets are cut.
        assert few[:3] == pytest.approx(losses[:3], rel=1e-5) and few[4:] != losses[4:]
    dist.destroy_process_group()


@case("ddp", least=3)
def groups_bad_steps_and_exact_gradients():
    dist.init_process_group("gloo")
    sub = dist.new_group([1, 2])
    if dist.get_rank():  # a group of two among three, whose first rank is not rank 0
        options = {"process_group": sub, "compression": "powersgd", "powersgd_start": 2, "bucket_cap_mb": 0.02}
        losses, weights = train(dist.DistributedDataParallel, steps=30, **options)
        assert sum(losses[-5:]) < sum(losses[:5]) / 2
    losses, weights = train(dist.DistributedDataParallel, compression="powersgd", powersgd_start=2, spoil=4)
    assert torch.isfinite(weights).all() and same_everywhere(weights)
    assert sum(losses[-3:]) < sum(losses[:3]) / 2  # it went on after the step that was left out
    exact_gradients()
    dist.destroy_process_group()


def rounds(inputs, rank, steps):
    """Gradients of a linear function whose gradient never changes: the true one, and those of PowerSGD."""
    model = torch.nn.Linear(40, 30, bias=False)
    directions = torch.randn(len(inputs), 30, generator=torch.Generator().manual_seed(3))
    options = {"compression": "powersgd", "powersgd_rank": rank, "powersgd_start": 2}
    model = dist.DistributedDataParallel(model, **options)
    found = []
    for _ in range(2 + steps):
        model.zero_grad()
        (model(inputs) * directions).sum().backward()
        found.append(model.module.weight.grad.clone())
    return found[0], torch.stack(found[2:])


def exact_gradients():
    inputs = torch.randn(2, 40, generator=torch.Generator().manual_seed(4))
    true, found = rounds(inputs, 2, 3)  # of rank two: nothing is lost
    assert (found - true).norm(dim=(1, 2)).max() < 1e-4 * true.norm()
    true, found = rounds(inputs, 1, 30)  # what one step loses, later ones bring
    assert torch.dist(found[0], true) > 0.2 * true.norm()
    assert torch.dist(found.mean(0), true) < 0.1 * true.norm()


@case("ddp", least=2)
def an_optimizer_gets_the_roots_state():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1 * (1 + dist.get_rank()), momentum=0.9)
    if dist.get_rank() == 0:
        net(torch.ones(4, 3)).sum().backward()
        optimizer.step()
    assert dist.use_perseus and dist.get_local_rank() == dist.get_rank()
    dist.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert torch.equal(optimizer.state[net.bias]["momentum_buffer"], torch.full((2,), 4.0))
    dist.destroy_process_group()

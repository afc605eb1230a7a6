"""Cases of SyncBatchNorm, which is BatchNorm of the batch of all ranks: outputs, gradients, running statistics."""

import pytest
import torch
from torch import nn

import platforms.horovod.torch as hvd

from .lab import alike, case

SHAPES = {"[N, C]": (), "[N, C, L]": (5,), "[N, C, H, W]": (3, 4), "[N, C, D, H, W]": (2, 1, 3)}


def parts(size, shape, rows, channels=3, dtype=torch.float64, offset=0.0):
    """The ranks' batches; `rows` says how many samples each has."""
    generator = torch.Generator().manual_seed(7)
    made = [torch.randn((n, channels, *shape), generator=generator, dtype=torch.float64) for n in rows[:size]]
    return [(part * (1 + i) + i + offset).to(dtype) for i, part in enumerate(made)]


def plain(like):
    """torch's own layer with the parameters and statistics of `like`."""

    class Plain(nn.modules.batchnorm._BatchNorm):
        def _check_input_dim(self, input):
            pass

    made = Plain(like.num_features, like.eps, like.momentum, like.affine, like.track_running_stats)
    return made.to(like.weight.dtype if like.affine else torch.float64)


def compare(shape, rows, steps=2, dtype=torch.float64, offset=0.0, **options):
    """How far our layer is from torch's on the global batch, over some training steps and then in evaluation."""
    torch.manual_seed(2)
    ours = hvd.SyncBatchNorm(3, **options).to(dtype)
    if ours.affine:
        nn.init.normal_(ours.weight)
        nn.init.normal_(ours.bias)
    theirs = plain(ours)
    theirs.load_state_dict(ours.state_dict())
    far = []
    for training in [True] * steps + [False]:
        ours.train(training), theirs.train(training)
        ours.zero_grad(), theirs.zero_grad()
        batches = parts(hvd.size(), shape, rows, dtype=dtype, offset=offset)
        factors = [part.sin() for part in batches]  # any function that is not constant
        mine = batches[hvd.rank()].clone().requires_grad_()
        whole = torch.cat(batches).requires_grad_()
        out, expected = ours(mine), theirs(whole)
        (out * factors[hvd.rank()]).sum().backward()
        (expected * torch.cat(factors)).sum().backward()
        start = sum(len(batch) for batch in batches[: hvd.rank()])
        share = slice(start, start + len(mine))
        assert out.shape == mine.shape and out.dtype == mine.dtype
        far += [distance(out, expected[share]), distance(mine.grad, whole.grad[share])]
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            far.append(distance(hvd.allreduce(a.grad, op=hvd.Sum), b.grad))
        for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
            far.append(distance(a, b))
            assert a.dtype == b.dtype
    return max(far)


def distance(one, other):
    return (one.double() - other.double()).abs().max().item() if one.numel() else 0.0


@case("batch_norm", least=2)
def as_the_global_batch():
    for shape in SHAPES.values():
        for rows in ((4, 4, 4), (5, 2, 3)):
            assert compare(shape, rows) < 1e-12, shape
    for rows in ((4, 0, 2), (0, 5, 0), (0, 2, 1), (1, 1, 1)):  # ranks without a batch, or with one sample
        for shape in ((), (3, 2)):
            assert compare(shape, rows) < 1e-12, rows
    for options in (
        {"affine": False},
        {"momentum": None},
        {"momentum": 0.7, "eps": 0.1},
        {"track_running_stats": False},
        {"affine": False, "track_running_stats": False},
    ):
        assert compare((2,), (4, 3, 2), steps=3, **options) < 1e-12, options


@case("batch_norm", least=2)
def with_a_large_mean():
    """Single precision, values around 3,000 with a spread of about 1: no digits cancel in the variance."""
    batches = parts(hvd.size(), (8, 8), (4, 3, 2), offset=3000.0)
    exact = nn.BatchNorm2d(3).double()(torch.cat(batches))
    start = sum(len(batch) for batch in batches[: hvd.rank()])
    out = hvd.SyncBatchNorm(3)(batches[hvd.rank()].float())
    assert distance(out, exact[start : start + len(out)]) < 2e-3
    assert compare((8, 8), (4, 3, 2), dtype=torch.float32) < 1e-4


@case("batch_norm", least=2)
def in_half_precision():
    layer = hvd.SyncBatchNorm(3)
    batch = parts(hvd.size(), (4,), (4, 4, 4))[hvd.rank()]
    for dtype in (torch.bfloat16, torch.float16):
        given = batch.to(dtype).requires_grad_()
        out = layer(given)
        out.sum().backward()
        assert out.dtype == given.grad.dtype == dtype and layer.running_mean.dtype == torch.float32
        assert distance(out, hvd.SyncBatchNorm(3)(batch.float())) < 0.05


@case("batch_norm", least=2)
def not_contiguous():
    torch.manual_seed(3)
    batch = parts(hvd.size(), (4, 5), (4, 3, 2))[hvd.rank()]
    layer = hvd.SyncBatchNorm(3).double()
    expected = layer(batch)
    assert distance(layer(batch.to(memory_format=torch.channels_last)), expected) < 1e-12
    assert distance(layer(batch.transpose(2, 3)).transpose(2, 3), expected) < 1e-12


@case("batch_norm", least=2)
def evaluation_talks_to_nobody():
    layer = hvd.SyncBatchNorm(3).eval()
    if hvd.rank() == 0:
        for _ in range(3):
            assert torch.allclose(layer(torch.ones(2, 3)), torch.ones(2, 3) / (1 + 1e-5) ** 0.5)


@case("batch_norm", least=2)
def refusals():
    layer = hvd.SyncBatchNorm(3)
    for wrong in (torch.ones(3), torch.ones(2, 4)):
        with pytest.raises(ValueError, match="expected"):
            layer(wrong)
    lonely = torch.ones(1 if hvd.rank() == 0 else 0, 3)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        layer(lonely)
    assert int(layer.num_batches_tracked) == 0
    assert layer(torch.ones(0, 3)).shape == (0, 3)  # no rank has anything
    assert layer.running_mean.tolist() == [0] * 3 and int(layer.num_batches_tracked) == 0


@case("batch_norm", least=2)
def in_a_training():
    """With DistributedOptimizer: three steps of a small net are those of one process on the global batch."""

    def net(norm):
        torch.manual_seed(4)
        return nn.Sequential(nn.Linear(4, 3), norm(3), nn.Tanh(), nn.Linear(3, 2)).double()

    ours, theirs = net(hvd.SyncBatchNorm), net(nn.BatchNorm1d)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=0.1), ours.named_parameters())
    reference = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for step in range(3):
        batch = torch.randn(3 * hvd.size(), 4, generator=torch.Generator().manual_seed(step)).double()
        optimizer.zero_grad(), reference.zero_grad()
        ours(batch[3 * hvd.rank() : 3 * hvd.rank() + 3]).square().mean().backward()
        theirs(batch).square().mean().backward()
        optimizer.step(), reference.step()
    states = zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True)
    assert max(distance(a, b) for a, b in states) < 1e-12
    alike(torch.cat([value.reshape(-1).double() for value in ours.state_dict().values()]))


@case("batch_norm", least=3)
def in_a_process_set():
    some = hvd.add_process_set([0, 2])
    batches = parts(hvd.size(), (), (3, 4, 2, 3))
    layer = hvd.SyncBatchNorm(3, process_set=some).double()
    out = layer(batches[hvd.rank()])
    together = torch.cat([batches[0], batches[2]]) if some.included() else batches[hvd.rank()]
    expected = nn.BatchNorm1d(3).double()(together)
    start = 3 if hvd.rank() == 2 else 0
    assert distance(out, expected[start : start + len(out)]) < 1e-12
    hvd.remove_process_set(some)

"""Cases of SyncBatchNorm, which is BatchNorm of the batch of all ranks: outputs, gradients, running statistics."""

import pytest
import torch
from torch import nn

import platforms.horovod.torch as hvd

from .lab import case

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

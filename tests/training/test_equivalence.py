"""The backbone: every way of spreading a training over devices computes the same training."""

import copy
import warnings
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from toys import batch, float64_net, smooth_net, toy_data

import helpers
from helpers import RunConfig, launch
from helpers.data.batches import GlobalBatchSampler
from helpers.training import sync_batch_norm
from helpers.training.evaluation import evaluate
from helpers.training.loop import train
from helpers.training.strategies import CPUDataParallel

STEPS = 20
TWO_AND_FOUR = [2, pytest.param(4, marks=pytest.mark.long)]  # ranks, devices or micro-batches


def float32_net():
    return smooth_net(dtype=torch.float32)


def float32_net_with_norm():
    return smooth_net(nn.BatchNorm2d, torch.float32)


@cache  # several tests compare with the same run
def losses(model, **settings):
    config = RunConfig(model=model, data=toy_data, global_batch=32, steps=STEPS, lr=0.05, threads=1, **settings)
    measured = launch(train, config.processes, config, timeout=600)[0]
    assert len(measured["samples"]["loss"]) == STEPS
    return torch.tensor(measured["samples"]["loss"], dtype=torch.float64), measured


def test_the_loop_is_that_of_plain_pytorch():
    """Written out here for more than three epochs: a mistake that all strategies share would not show elsewhere."""
    found, _ = losses(float64_net)
    config, (data, _) = RunConfig(), toy_data()
    sampler, batches, by_hand = GlobalBatchSampler(len(data), 32, seed=config.seed), [], []
    torch.manual_seed(config.seed)
    net = float64_net()
    options = {"momentum": config.momentum, "weight_decay": config.weight_decay}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, **options)
    for epoch in range(-(-STEPS // len(sampler))):
        sampler.set_epoch(epoch)
        batches += sampler
    for chosen in batches[:STEPS]:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(data.images[chosen]), data.labels[chosen])
        loss.backward()
        optimizer.step()
        by_hand.append(loss.item())
    assert found.tolist() == pytest.approx(by_hand, abs=1e-12)


@pytest.mark.parametrize("ranks", TWO_AND_FOUR)
@pytest.mark.parametrize(
    "model, tolerance",
    [
        (float64_net, 1e-10),
        pytest.param(float32_net, 1e-6, marks=pytest.mark.long),
    ],
)
def test_ddp_follows_the_losses_of_one_process(ranks, model, tolerance):
    one, _ = losses(model)
    many, _ = losses(model, strategy="ddp", nproc_per_node=ranks)
    assert one[0] > one[-1], "the toy problem is not being learnt"
    assert (one - many).abs().max() <= tolerance


@pytest.mark.parametrize("ranks", TWO_AND_FOUR)
def test_ddp_with_adamw_follows_the_losses_of_one_process(ranks):
    one, _ = losses(float64_net, optimizer="adamw")
    many, _ = losses(float64_net, optimizer="adamw", strategy="ddp", nproc_per_node=ranks)
    assert (one - many).abs().max() <= 1e-6
    assert (one - losses(float64_net)[0]).abs().max() > 1e-3, "it is SGD"


@pytest.mark.parametrize("ranks", TWO_AND_FOUR)
def test_ddp_with_synchronised_norm_follows_the_losses_of_one_process(ranks):
    one, _ = losses(float32_net_with_norm)
    many, _ = losses(float32_net_with_norm, strategy="ddp", nproc_per_node=ranks, sync_batch_norm=True)
    local, _ = losses(float32_net_with_norm, strategy="ddp", nproc_per_node=ranks)
    assert (one - many).abs().max() <= 1e-5
    assert (one - local).abs().max() > 1e-3, "local statistics should have shown"


@pytest.mark.parametrize("devices", TWO_AND_FOUR)
def test_data_parallel_follows_the_losses_of_one_device(devices):
    one, _ = losses(float64_net)
    many, measured = losses(float64_net, strategy="data_parallel", nproc_per_node=devices)
    assert (one - many).abs().max() <= 1e-10
    if not torch.cuda.is_available():
        assert "CPU replicas" in measured["note"]


def test_the_worker_path_trains_like_the_fast_path():
    fast, _ = losses(float64_net)
    workers, _ = losses(float64_net, input_path="workers", num_workers=1)
    assert (fast - workers).abs().max() <= 1e-12


@pytest.mark.parametrize("ranks", TWO_AND_FOUR)
def test_accuracy_counts_every_test_sample_once_on_uneven_shards(ranks):
    _, alone = losses(float64_net)
    _, measured = losses(float64_net, strategy="ddp", nproc_per_node=ranks)
    assert measured["evaluation"]["count"] == 37, "37 samples: no even split"
    assert measured["evaluation"]["correct"] == alone["evaluation"]["correct"]


def statistics_after_evaluation():
    """The buffers and the outcome of an evaluation that ranks begin with statistics of their own."""
    with helpers.distributed("cpu") as world:
        torch.manual_seed(0)
        model = smooth_net(nn.BatchNorm2d)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.fill_(float(world.rank))
        found = evaluate(model, toy_data()[1], world, F.cross_entropy, lambda network, inputs: network(inputs))
        return found, [buffer.clone() for buffer in model.buffers()]


def test_all_ranks_test_the_model_of_rank_0():
    alone = launch(statistics_after_evaluation, 1, threads=1, timeout=600)[0]
    for found, buffers in launch(statistics_after_evaluation, 2, threads=1, timeout=600):
        assert found["loss"] == pytest.approx(alone[0]["loss"], abs=1e-10) and found["correct"] == alone[0]["correct"]
        assert all(torch.equal(a, b) for a, b in zip(buffers, alone[1], strict=True))


# -- BatchNorm ----------------------------------------------------------------------------


def statistics_on_ranks(sizes):
    """Running statistics and input gradients of a synchronised layer; rank r has sizes[r] samples."""
    with helpers.distributed("cpu") as world:
        warnings.simplefilter("error")
        norm = sync_batch_norm.CPUSyncBatchNorm.of(nn.BatchNorm2d(3).double())
        whole = batch(torch.float64)[0][: sum(sizes)]
        mine = whole.split(sizes)[world.rank].clone().requires_grad_()
        outputs = norm(mine)
        (outputs.tanh() * outputs).sum().backward()
        return outputs.detach(), mine.grad, norm.running_mean, norm.running_var


@pytest.mark.parametrize("sizes", [(11, 5), pytest.param((4, 4, 6), marks=pytest.mark.long)])
def test_synchronised_norm_sees_the_whole_batch(sizes):
    norm = nn.BatchNorm2d(3).double()
    whole = batch(torch.float64)[0][: sum(sizes)].clone().requires_grad_()
    outputs = norm(whole)
    (outputs.tanh() * outputs).sum().backward()
    got = launch(statistics_on_ranks, len(sizes), sizes, timeout=600)
    assert torch.allclose(torch.cat([g[0] for g in got]), outputs, atol=1e-12)
    assert torch.allclose(torch.cat([g[1] for g in got]), whole.grad, atol=1e-12)
    for _, _, mean, variance in got:
        assert torch.allclose(mean, norm.running_mean, atol=1e-12)
        assert torch.allclose(variance, norm.running_var, atol=1e-12)


# -- DataParallel on CPU ------------------------------------------------------------------


def test_cpu_data_parallel_gradients_equal_the_baseline():
    def gradients(devices):
        torch.manual_seed(0)
        net = float64_net()
        images, labels = batch(torch.float64)
        F.cross_entropy(CPUDataParallel(net, devices)(images), labels).backward()
        return [p.grad for p in net.parameters()]

    for devices in (2, 3, 4):
        torch.testing.assert_close(gradients(devices), gradients(1), rtol=0, atol=1e-12)


def test_cpu_data_parallel_keeps_the_first_replicas_statistics():
    torch.manual_seed(0)
    net = smooth_net(nn.BatchNorm2d)
    alone = copy.deepcopy(net)
    images, _ = batch(torch.float64)
    CPUDataParallel(net, 2)(images)
    alone(images.chunk(2)[0])
    for name, buffer in net.named_buffers():
        assert torch.equal(buffer, dict(alone.named_buffers())[name]), name


def test_cpu_data_parallel_frozen_unused_and_shared_parameters():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.again = self.first  # shared
            self.unused = nn.Linear(4, 4)
            self.frozen = nn.Linear(4, 4).requires_grad_(False)

        def forward(self, x):
            return self.again(self.frozen(self.first(x)))

    torch.manual_seed(0)
    net = Odd().double()
    twin = copy.deepcopy(net)
    x = torch.randn(6, 4, dtype=torch.float64)
    CPUDataParallel(net, 3)(x).square().mean().backward()
    twin(x).square().mean().backward()
    assert net.unused.weight.grad is None and net.frozen.weight.grad is None
    assert torch.allclose(net.first.weight.grad, twin.first.weight.grad, atol=1e-12)


def test_cpu_data_parallel_raises_the_replicas_error():
    class Broken(nn.Module):
        def forward(self, x):
            raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        CPUDataParallel(Broken(), 2)(torch.randn(4, 2))


# -- accumulation -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "strategy, devices",
    [
        ("ddp", 2),
        *(pytest.param(*of, marks=pytest.mark.long) for of in (("baseline", 1), ("data_parallel", 2))),
    ],
)
@pytest.mark.parametrize("parts", TWO_AND_FOUR)
def test_accumulated_micro_batches_equal_the_whole_batch(strategy, devices, parts):
    one, _ = losses(float64_net)
    several, _ = losses(float64_net, strategy=strategy, nproc_per_node=devices, accumulation=parts)
    assert (one - several).abs().max() <= 1e-10


@pytest.mark.parametrize("parts", TWO_AND_FOUR)
def test_one_device_with_micro_batches_equals_ranks_batch_norm_included(parts):
    """As many micro-batches on one device see what the ranks see: BatchNorm's local batch is the same."""
    ranks, _ = losses(float32_net_with_norm, strategy="ddp", nproc_per_node=parts)
    parts, _ = losses(float32_net_with_norm, accumulation=parts)
    whole, _ = losses(float32_net_with_norm)
    assert (ranks - parts).abs().max() <= 1e-5
    assert (ranks - whole).abs().max() > 1e-3, "local statistics should have shown"


def test_the_loop_sends_gradients_once_an_update():
    assert launch(_sync_flags, 2, timeout=600)[0] == [False, False, False, True] * 3


def _sync_flags():
    """Whether DDP was about to reduce, micro-batch by micro-batch, in the kit's own loop."""
    from helpers.training import loop as module

    flags = []
    real = module.Run._forward

    def forward(run, model, images):
        if model is run.wrapped and model.training:
            flags.append(model.require_backward_grad_sync)
        return real(run, model, images)

    module.Run._forward = forward
    config = RunConfig(
        model=float64_net,
        data=toy_data,
        global_batch=32,
        steps=3,
        threads=1,
        strategy="ddp",
        nproc_per_node=2,
        accumulation=4,
        evaluate=False,
    )
    module.train(config)
    return flags


def test_clipping_and_accumulation_on_ranks_equal_one_device():
    one, _ = losses(float64_net, clip_norm=0.05)
    free, _ = losses(float64_net)
    ranks, _ = losses(float64_net, strategy="ddp", nproc_per_node=2, accumulation=2, clip_norm=0.05)
    assert (one - ranks).abs().max() <= 1e-10
    assert (one - free).abs().max() > 1e-4, "the limit should have been felt"

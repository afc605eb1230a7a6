"""The costs of a split GPT against what PyTorch allocates, sends and shards, and against each other."""

from collections import defaultdict
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import helpers
from helpers.costmodel import Link, splitting
from helpers.costmodel.splitting import CannotSplit, Layout, Transformer, fastest, layouts, memory, sent, step
from helpers.training.gpt import gpt, next_token_loss

SMALL = Transformer(layers=4, width=128, heads=4, vocabulary=64, length=64)
LARGE = Transformer(layers=40, width=5120, heads=40, vocabulary=51_200, length=2048)
CPU = {"HELPERS_DEVICE": "cpu"}
FABRIC = Link(3.4e-6, 1 / 450e9), Link(9.6e-6, 1 / 25e9)


def total(model, layout, batch=512):
    return sum(memory(model, layout, batch).values())


# -- against PyTorch ----------------------------------------------------------------------


@pytest.mark.parametrize("shape", [SMALL, Transformer(3, 64, 2, 100, 32)])
def test_the_parameters_are_those_of_the_model(shape):
    with torch.device("meta"):
        model = gpt(shape.layers, shape.width, shape.heads, shape.vocabulary, shape.length)
    count = {name: sum(p.numel() for p in part.parameters()) for name, part in model.named_children()}
    assert (shape.embedding, shape.head) == (count["embedding"], count["head"])
    assert shape.layers * shape.block == count["blocks"] and shape.parameters == sum(count.values())


def test_the_activations_are_those_that_autograd_keeps():
    model, kept = gpt(4, 128, 4, 64, 64), defaultdict(int)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    tokens = torch.randint(0, 64, (8, 64))
    x = model.embedding(tokens)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        x = model.blocks[0](x)
    modelled = memory(SMALL, Layout(), 8)["activations"] - 8 * tokens.numel() * SMALL.vocabulary  # without the scores
    assert sum(kept.values()) / 4 == pytest.approx(modelled / SMALL.layers / splitting.NUMBER, rel=0.02)


@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_sent_are_those_that_the_ranks_bring(recompute):
    """Without the numbers of bytes, which are 2 in the model and 4 here."""
    assert sent(SMALL, Layout(data=2), 8)["data"] / splitting.GRADIENT == SMALL.parameters
    found = helpers.launch(_bytes_of_all_reduces, 1, recompute, threads=1, env=CPU)[0]
    assert sent(SMALL, Layout(tensor=2, recompute=recompute), 8)["tensor"] / splitting.NUMBER == found / 4


def test_recomputing_adds_the_forward_of_the_blocks_without_their_last_product():
    found, tokens = {}, torch.randint(0, 64, (8, 64))
    for recompute in (False, True):
        model = gpt(4, 128, 4, 64, 64)
        if recompute:
            _recomputed(model)
        with FlopCounterMode(display=False) as counter:
            next_token_loss(model(tokens), tokens).backward()
        found[recompute] = counter.get_total_flops()
    products = (
        SMALL.length * SMALL.layers * 16 * SMALL.width**2
    )  # FlopCounterMode leaves out attention on CPUs, and norms
    assert 8 * products <= found[True] - found[False] <= 8 * SMALL.operations_again


def _recomputed(model):
    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


class Bytes(TorchDispatchMode):
    """Of all tensors brought to all-reduces."""

    sent = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if DTensor in types:  # it will call the collectives, which come here too
            return NotImplemented
        if "all_reduce" in str(function):
            Bytes.sent += args[0].nbytes
        return function(*args, **(kwargs or {}))


def _bytes_of_all_reduces(recompute, batch=8):
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    plan = {"attention.qkv": ColwiseParallel, "attention.out": RowwiseParallel}
    plan |= {"mlp.up": ColwiseParallel, "mlp.down": RowwiseParallel}
    model, mesh = gpt(4, 128, 4, 64, 64), init_device_mesh("cpu", (2,))
    for block in model.blocks:
        parallelize_module(block, mesh, {name: way() for name, way in plan.items()})
    if recompute:
        _recomputed(model)
    tokens = torch.randint(0, 64, (batch, 64))
    with Bytes():
        next_token_loss(model(tokens), tokens).backward()
    return Bytes.sent


@pytest.mark.long
@pytest.mark.parametrize("ranks", [64, 1024])
def test_shards_are_those_of_fsdp(ranks):
    held = helpers.launch(_shard, 1, ranks, env=CPU)[0]
    parameters = memory(LARGE, Layout(data=ranks, zero=3, micro_batches=1), 1024)["optimizer state"] / splitting.ADAM
    assert held == pytest.approx(parameters, rel=0.01)


def _shard(ranks):
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    with torch.device("meta"):
        model = gpt(LARGE.layers, LARGE.width, LARGE.heads, LARGE.vocabulary, LARGE.length)
    mesh = init_device_mesh("cpu", (ranks,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return sum(p.to_local().numel() for p in model.parameters())


# -- formulas -----------------------------------------------------------------------------


@pytest.mark.parametrize("p, m", [(2, 4), (4, 4), (8, 32)])
def test_the_bubble_is_that_of_gpipe(p, m):
    found = step(LARGE, Layout(pipeline=p, micro_batches=m), 512, splitting.Device(80e9, 5e14), *[Link(0, 0)] * 2)
    assert found.straggling / found.seconds == pytest.approx((p - 1) / (m + p - 1))
    assert found.exposed == 0


def test_recomputing_trades_activations_for_time():
    device, (plain, again) = splitting.device(), (Layout(data=64, zero=3, micro_batches=2, recompute=r) for r in (0, 1))
    kinds = [memory(LARGE, layout, 512) for layout in (plain, again)]
    assert kinds[1]["activations"] < 0.3 * kinds[0]["activations"]
    assert {**kinds[0], "activations": 0} == {**kinds[1], "activations": 0}
    steps = [step(LARGE, layout, 512, device, *[Link(0, 0)] * 2) for layout in (plain, again)]
    assert steps[1].seconds / steps[0].seconds == pytest.approx(1.22, abs=0.02)
    assert again.name == f"{plain.name} · recomputed"


@pytest.mark.parametrize("devices", [1, 2, 4, 64, 1024])
def test_the_fastest_layout_fits_and_beats_the_others(devices):
    device = splitting.device()
    best = fastest(LARGE, devices, 512, device, *FABRIC)
    assert (best is None) == (16 * LARGE.parameters / devices > splitting.ROOM * device.memory)
    if best is None:
        return
    layout, its_step = best
    assert layout.devices == devices and total(LARGE, layout) <= splitting.ROOM * device.memory
    fit = [other for other in layouts(LARGE, devices, 512) if total(LARGE, other) <= splitting.ROOM * device.memory]
    assert its_step.seconds <= min(step(LARGE, other, 512, device, *FABRIC).seconds for other in fit) + 1e-6


@pytest.mark.parametrize("uneven", [{"tensor": 3}, {"pipeline": 7}, {"data": 1024}, {"data": 4, "micro_batches": 3}])
def test_what_cannot_be_shared_evenly_is_refused(uneven):
    for question in (memory, sent):
        with pytest.raises(CannotSplit):
            question(LARGE, Layout(**uneven), 512)

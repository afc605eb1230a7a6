"""Convolutions as products of matrices: the same numbers, fewer of them where images are small."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import peak
from helpers import RunConfig, launch
from helpers.training import convolutions, models
from helpers.training.loop import train

LAST = torch.channels_last


@pytest.mark.parametrize("stride", [1, 2, (2, 1)])
@pytest.mark.parametrize("kernel, padding", [(1, 0), (1, 1), (3, 1), (3, 0), ((1, 3), (0, 1)), (5, 2), (2, 0)])
@pytest.mark.parametrize("height, width", [(1, 1), (2, 2), (7, 5), (8, 8), (16, 16)])
def test_products_are_the_librarys_numbers(stride, kernel, padding, height, width):
    torch.manual_seed(0)
    plain = nn.Conv2d(64, 72, kernel, stride, padding).double().to(memory_format=LAST)
    product = nn.Conv2d(64, 72, kernel, stride, padding).double().to(memory_format=LAST)
    product.load_state_dict(plain.state_dict())
    assert convolutions.as_products(product) == 1
    found = []
    for layer in (plain, product):
        images = torch.randn(3, 64, height, width, generator=torch.Generator().manual_seed(1)).double()
        images = images.to(memory_format=LAST).requires_grad_()
        try:
            made = layer(images)
        except RuntimeError as error:  # the kernel is larger than the image
            found.append(str(error))
            continue
        made.square().sum().backward()
        found.append((made, images.grad, layer.weight.grad, layer.bias.grad))
    if isinstance(found[0], str):
        assert found[0] == found[1]
        return
    for theirs, ours in zip(*found, strict=True):
        assert theirs.shape == ours.shape and torch.allclose(theirs, ours, rtol=1e-10, atol=1e-9)
    assert found[1][0].is_contiguous(memory_format=LAST)


def test_only_plain_layers_with_many_channels_are_taken():
    class Own(nn.Conv2d):
        pass

    model = nn.Sequential(
        nn.Conv2d(3, 64, 3), nn.Conv2d(64, 64, 3), Own(64, 64, 3), nn.Conv2d(64, 64, 3, groups=2),
        nn.Conv2d(64, 64, 3, dilation=2), nn.Conv2d(64, 64, 3, padding="same"),
        nn.Conv2d(64, 64, 3, padding=1, padding_mode="circular"), nn.Conv2d(64, 128, 1, bias=False),
    )  # fmt: skip
    before = dict(model.named_parameters())
    assert convolutions.as_products(model) == 2 and convolutions.as_products(model) == 0
    taken = [isinstance(layer, convolutions.ProductConv2d) for layer in model]
    assert taken == [False, True, False, False, False, False, False, True]
    assert all(before[name] is weight for name, weight in model.named_parameters())


def test_large_images_other_layouts_and_half_formats_are_the_librarys(monkeypatch):
    layer = nn.Conv2d(64, 64, 3, padding=1).to(memory_format=LAST)
    convolutions.as_products(layer)
    small, large = torch.ones(1, 64, 4, 4).to(memory_format=LAST), torch.ones(1, 64, 16, 16).to(memory_format=LAST)
    products = lambda images: layer(images).grad_fn.name() != "ConvolutionBackward0"  # noqa: E731
    assert products(small) and not products(large) and not products(small.contiguous())
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(small).dtype == torch.bfloat16 and not products(small)
    layer.bfloat16()
    assert not products(small.bfloat16())


def test_gradients_can_be_differentiated():
    layer = nn.Conv2d(64, 64, 3, padding=1, bias=False).double().to(memory_format=LAST)
    convolutions.as_products(layer)
    found = []
    for call in (layer, lambda images: F.conv2d(images, layer.weight, padding=1)):
        images = torch.linspace(-1, 1, 64 * 4).double().reshape(1, 64, 2, 2).to(memory_format=LAST).requires_grad_()
        (slope,) = torch.autograd.grad(call(images).square().sum(), images, create_graph=True)
        found.append(torch.autograd.grad(slope.square().sum(), layer.weight)[0])
    assert torch.allclose(*found, rtol=1e-9)


def test_what_only_meets_the_padding_is_not_computed():
    plain, product = (nn.Conv2d(64, 64, 3, padding=1, bias=False).to(memory_format=LAST) for _ in range(2))
    convolutions.as_products(product)
    work = [peak.flops(lambda m=m: m(torch.ones(2, 64, 1, 1)).sum().backward()) for m in (plain, product)]
    once = 2 * 2 * 64 * 64  # FLOPs of one place in the kernel; the images need no gradient
    assert work == [18 * once, 10 * once]


def test_a_run_in_channels_last_follows_the_other(monkeypatch):
    """Also under DDP, whose ranks warn about gradients that lie differently from their weights."""

    def run(**settings):
        common = dict(data="digits", global_batch=16, steps=4, threads=1, device="cpu", evaluate=False, lr=0.01)
        config = RunConfig(model=wide, **common, **settings)
        return launch(train, config.processes, config, threads=1, timeout=200)[0]["samples"]["loss"]

    plain, ddp = run(channels_last=False), dict(strategy="ddp", nproc_per_node=2)
    assert run(channels_last=True) == pytest.approx(plain, abs=1e-5)
    assert run(channels_last=True, **ddp) == pytest.approx(run(**ddp), abs=1e-5)


def wide():
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(64, 128, 1, bias=False), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def test_gradients_lie_as_ddp_wants_them():
    model = models.build("resnet50", 10).to(memory_format=LAST)
    assert convolutions.as_products(model) == 52, "all but the first"
    F.cross_entropy(model(torch.randn(2, 3, 32, 32).to(memory_format=LAST)), torch.tensor([0, 1])).backward()
    assert all(weight.grad.stride() == weight.stride() for weight in model.parameters())


@pytest.mark.parametrize("capability, found", [("AVX2", True), ("AVX512", False), ("DEFAULT", False)])
def test_only_a_cpu_with_avx2_alone_gains(monkeypatch, capability, found):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert convolutions.helps(torch.device("cpu")) == found and not convolutions.helps(torch.device("meta"))

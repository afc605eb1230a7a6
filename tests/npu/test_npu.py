"""The emulated NPU computes what the CPU computes, and refuses what the hardware refuses."""

import io
import json
import os
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import torchvision
from npu_ranks import needs_npu, on_npu, with_device
from torch import nn

import helpers
import platforms.npu
from helpers import releases
from platforms.npu import loading

NAMES = json.loads((Path(loading.__file__).parent / "names.json").read_text())


def losses_and_weights(name, device, steps=3):
    """`steps` of fp32 SGD on random images."""
    torch.manual_seed(0)
    model = torchvision.models.get_model(name, num_classes=10)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # each device has its own random numbers
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    images, labels, losses = torch.randn(4, 3, 64, 64), torch.randint(10, (4,)), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {k: v.cpu() for k, v in model.state_dict().items()}


def trains_alike(name):
    losses, state = losses_and_weights(name, "cpu")
    on_card, card_state = losses_and_weights(name, "npu:3")
    assert torch.npu.emulator_stats("npu:3")["ops"] > 500 and torch.npu.emulator_stats(0)["ops"] == 0
    assert losses == on_card and len(set(losses)) == len(losses)
    assert all(torch.equal(state[key], card_state[key]) for key in state)


@needs_npu
@pytest.mark.parametrize("name", ["mobilenet_v3_small", pytest.param("resnet50", marks=pytest.mark.long)])
def test_training_a_cnn_is_bitwise_that_of_the_cpu(name):
    helpers.launch(with_device, 1, trains_alike, name, threads=1, timeout=900)


@on_npu
def test_tensors_go_to_the_card_and_come_back():
    x = torch.randn(3, 4)
    assert str(x.npu().device) == "npu:0" and x.npu().is_npu and not x.is_npu
    assert torch.equal(x.to("npu:2").npu(3).cpu(), x)
    assert str(nn.Linear(2, 2).npu(1).weight.device) == "npu:1"
    torch.npu.set_device(2)
    with torch.npu.device(1), torch.npu.device_of(torch.zeros(1)):
        assert str(torch.zeros(1, device="npu").device) == "npu:1"
    with torch.npu.device_of(torch.zeros(1, device="npu:5")):
        assert torch.npu.current_device() == 5
    assert "device='npu:2'" in repr(torch.zeros(1, device="npu"))


@on_npu
def test_views_share_memory_and_results_are_new():
    x = torch.arange(12.0, device="npu").reshape(3, 4)
    x[1].add_(100)
    x.t()[0, 0] = -1
    assert x.cpu().tolist() == [[-1, 1, 2, 3], [104, 105, 106, 107], [8, 9, 10, 11]]
    y = x + 0
    y.zero_()
    assert x.sum().item() != 0
    out = torch.empty(0, device="npu")
    torch.add(x, x, out=out)
    assert out.shape == (3, 4) and torch.equal(out, x + x)
    with torch.inference_mode():  # knows views of what was made outside
        assert (x + 1).is_inference() and not x.t().is_inference()
    z = torch.randn(3, dtype=torch.complex64)
    assert torch.equal((z.npu().conj() * z.npu()).cpu(), z.conj() * z), "a lazy conjugate"


def refusals():
    x = torch.ones(2, 3, device="npu")
    picture = torch.ones(1, 3, 8, 8, device="npu")
    wide = torch.ones(2, 2, dtype=torch.float64).npu()
    return {
        "npu with cpu": lambda: x + torch.ones(2, 3),
        "npu with cpu in a list": lambda: torch.cat([x, torch.ones(2, 3)]),
        "a model on the cpu": lambda: nn.Linear(3, 1)(x),
        "a convolution on the cpu": lambda: nn.Conv2d(3, 1, 3)(picture),
        "labels on the cpu": lambda: F.cross_entropy(x, torch.zeros(2, dtype=torch.long)),
        "two cards": lambda: x + torch.ones(2, 3, device="npu:1"),
        "a card that is not there": lambda: x.to("npu:8"),
        "a card that is not there, made current": lambda: torch.npu.set_device(8),
        "a card's tensor pinned": lambda: x.pin_memory(),
        "channels last": lambda: picture.to(memory_format=torch.channels_last),
        "a model in channels last": lambda: nn.Conv2d(3, 1, 3).to("npu", memory_format=torch.channels_last),
        "one process for several cards": lambda: nn.DataParallel(nn.Linear(3, 1).npu()),
        "one process that moves its model later": lambda: nn.DataParallel(nn.Linear(3, 1)).npu()(x),
        "a model for other processes": lambda: nn.Sequential(nn.Linear(3, 1).npu(1)).share_memory(),
        "a matrix product in float64": lambda: wide @ wide,
    }


@on_npu
def test_what_the_hardware_refuses_is_refused_in_the_emulators_name():
    for what, action in refusals().items():
        with pytest.raises(RuntimeError) as refused:
            action()
        assert "emulated NPU" in str(refused.value), what
    nn.Linear(3, 1).share_memory()
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(2).npu() + torch.ones(2)
    x = torch.arange(6.0, device="npu")  # a number and indices on the host may be mixed in
    assert (x * torch.tensor(2.0))[torch.tensor([1, 2])].tolist() == [2, 4]


@on_npu
def test_a_module_moves_in_place():
    """As with torch_npu: tied weights stay tied, and an optimizer made before the move trains, there and back."""
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    optimizer, weight = torch.optim.SGD(model.parameters(), 0.1), model[0].weight
    for place in ("npu:1", "cpu", "npu:1"):
        before = weight.detach().cpu().clone()
        model.to(place)(torch.ones(1, 3, device=place)).sum().backward()
        optimizer.step()
        assert model[0].weight is model[1].weight is weight and str(weight.device) == str(weight.grad.device) == place
        assert not torch.equal(weight.detach().cpu(), before)


@on_npu
def test_a_cast_to_float64_gives_float32_with_one_warning():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert torch.ones(2, device="npu").double().dtype == torch.float32
        assert nn.Linear(2, 2).npu().double().weight.dtype == torch.float32
        held = torch.ones(2, 2).to("npu", torch.float64)  # from the host: held, and not computed with
    assert len([w for w in caught if "double" in str(w.message) and "emulated NPU" in str(w.message)]) == 1
    assert torch.ones(2).double().dtype == held.dtype == torch.float64


@on_npu(env={"HELPERS_NPU_MEMORY_MB": "64"})
def test_memory_is_counted_and_capped():
    x = torch.zeros(4 << 20, device="npu:1")  # 16 MiB
    assert torch.npu.memory_allocated(1) == torch.npu.max_memory_allocated(1) == 16 << 20
    with pytest.raises(torch.OutOfMemoryError, match="NPU out of memory"):
        torch.zeros(16 << 20, device="npu:1")
    y = x + 1  # what an operator makes counts as well
    assert torch.npu.mem_get_info(1) == (32 << 20, 64 << 20) and torch.npu.memory_allocated(0) == 0
    del x, y
    told = releases.device_memory("npu")  # what the kit asks: torch.accelerator, where it knows
    assert told.memory_allocated(1) == 0 and told.max_memory_allocated(1) == 32 << 20
    torch.npu.reset_peak_memory_stats(1)
    assert torch.npu.max_memory_allocated(1) == told.max_memory_allocated(1) == 0


@on_npu
def test_checkpoints_go_between_cards_and_the_host():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).npu(1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 3, 5, 5, device="npu:1")).sum().backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)

    places = (None, "npu:1"), ("npu:0", "npu:0"), ("cpu", "cpu"), ({"npu:1": "npu:4"}, "npu:4")
    for where, there in (*places, (lambda storage, place: storage.npu(2), "npu:2")):
        file.seek(0)
        loaded = torch.load(file, map_location=where)
        moments = loaded["optimizer"]["state"][0]["exp_avg"]
        assert {str(t.device) for t in (*loaded["model"].values(), moments)} == {there}
        assert torch.equal(loaded["model"]["0.weight"].cpu(), model[0].weight.cpu())


@on_npu
def test_torch_npu_amp_chooses_formats_and_skips_steps_with_an_overflow():
    with (
        torch.npu.amp.autocast(),
        pytest.warns(UserWarning, match="emulated NPU"),
        torch.npu.stream(torch.npu.Stream()),
    ):
        assert torch.npu.is_autocast_enabled() and nn.Linear(8, 8).npu()(torch.ones(4, 8).npu()).dtype == torch.float16
    weight = torch.ones(2, device="npu", requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.5)
    for scaler, change in ((torch.npu.amp.GradScaler(), 0.5), (torch.npu.amp.GradScaler(dynamic=False), 1)):
        start, scale = weight.detach().clone(), scaler.get_scale()
        for factor, moved in ((float("inf"), 0), (1, 0.5)):
            optimizer.zero_grad()
            scaler.scale(weight.sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            assert torch.equal(weight, start - moved) and scaler.get_scale() == scale * change


@on_npu
def test_a_forked_child_may_not_use_the_device():
    torch.ones(1, device="npu")
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            torch.ones(1, device="npu")
            os.write(writing, b"allowed")
        except RuntimeError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.wait()
    told = os.read(reading, 4096).decode()
    assert "spawn" in told and "emulated NPU" in told


@on_npu
def test_names_are_those_of_the_real_package():
    import torch_npu

    assert torch_npu.npu is torch.npu and "emulated" in torch_npu.__version__
    there = {name for name in NAMES["npu"] if hasattr(torch.npu, name)}
    assert there >= {"Event", "FloatTensor", "device_count", "empty_cache", "is_available", "manual_seed_all", "matmul"}
    assert all(hasattr(torch.npu.amp, name) for name in NAMES["npu.amp"])
    with pytest.raises(AttributeError, match="torch_npu has it, the emulated NPU does not"):
        torch.npu.NPUGraph  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute"):
        torch.npu.nonsense  # noqa: B018


@on_npu
def test_the_emulated_card_is_none_of_the_devices_to_measure_on():
    assert torch.accelerator.current_accelerator().type == "npu"
    assert helpers.machine().kind == "cpu" and helpers.choose_devices(2).kind == "cpu"
    with pytest.raises(ValueError, match="no npu device"):
        helpers.machine("npu")


@on_npu(env={"ASCEND_RT_VISIBLE_DEVICES": "5,2"})
def test_a_process_sees_the_cards_that_it_may():
    from platforms.npu import counts

    assert torch.npu.device_count() == 2
    torch.ones(1, device="npu:1") + 1
    assert list(counts.of_process()["devices"]) == ["2"]
    with pytest.raises(RuntimeError, match="npu:2.*2 cards"):
        torch.ones(1, device="npu:2")


@pytest.mark.parametrize("devices, cards", [("0", ""), ("9", ""), ("1.5", ""), (8, "0,0"), (8, "8"), (8, "0,,1")])
def test_a_host_that_cannot_be_is_refused(devices, cards, monkeypatch):
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", cards)
    with pytest.raises(ValueError):
        platforms.npu.environment(devices)


def test_a_compiler_that_is_missing_or_fails_is_named(tmp_path, monkeypatch):
    from platforms.npu import build

    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(platforms.npu.NpuMissing, match="no-such-compiler"):
        build.library()
    broken = tmp_path / "cxx"
    broken.write_text("#!/bin/sh\necho 'npu.cpp:1: error: planted' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(platforms.npu.NpuMissing, match="error: planted"):
        build.library()
    assert not list(tmp_path.rglob("*.so"))


def test_the_real_package_is_preferred(tmp_path, monkeypatch):
    assert not loading.real_torch_npu() or loading.shims() == []
    (tmp_path / "torch_npu").mkdir()
    (tmp_path / "torch_npu" / "__init__.py").write_text("REAL = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert loading.real_torch_npu()
    assert str(loading.SHIMS / "torch_npu") not in platforms.npu.environment()["PYTHONPATH"].split(":")
    assert loading.load() == "torch_npu"
    monkeypatch.delitem(__import__("sys").modules, "torch_npu")

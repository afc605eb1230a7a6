"""Ranks on a GPU: launching, process groups of one rank, limits, and stopping one that a kernel keeps busy."""

import time

import gpu
import pytest
import torch
import torch.distributed as dist
from gpu import ENV, KIND

import helpers
from helpers import launch

pytestmark = gpu.MARKS
OPTIONS = {"env": ENV, "timeout": 600}


def add_up():
    with helpers.distributed() as world:
        total = torch.arange(4.0, device=world.device).sum()
        return world.device.type, world.backend, total.item(), torch.cuda._is_in_bad_fork()


def test_a_rank_drives_the_device():
    backend = {"cuda": "nccl", "cpu": "gloo"}[KIND]
    assert launch(add_up, 1, **OPTIONS) == [(KIND, backend, 6.0, False)]


def test_the_cpu_can_be_had_beside_it():
    assert [kind for kind, *_ in launch(add_up, 2, env={"HELPERS_DEVICE": "cpu"}, timeout=600)] == ["cpu", "cpu"]


@gpu.needs_cuda
def test_more_ranks_than_devices_are_refused():
    with pytest.raises(ValueError, match=r"accelerator\(s\), and two ranks cannot share one. .*HELPERS_DEVICE': 'cpu'"):
        launch(add_up, torch.cuda.device_count() + 1)


def collectives(backend):
    with helpers.distributed(backend=backend) as world:
        ones = torch.ones(8, device=world.device)
        gathered, part, objects = torch.empty(8, device=world.device), torch.empty(8, device=world.device), [None]
        dist.all_reduce(ones)
        dist.broadcast(ones, 0)
        dist.barrier()
        dist.all_gather_object(objects, "word")
        if world.backend != "gloo":  # which has neither for CUDA tensors
            dist.all_gather_into_tensor(gathered, ones)
            dist.reduce_scatter_tensor(part, ones)
            assert torch.equal(gathered, ones) and torch.equal(part, ones)
        return ones.sum().item(), objects


@pytest.mark.parametrize("backend", [None, "gloo"])
def test_collectives_of_one_rank(backend):
    """NCCL, which one GPU can show with one rank only; and gloo on tensors of the device."""
    assert launch(collectives, 1, backend, **OPTIONS) == [(8.0, ["word"])]


def hold(count):
    with helpers.distributed() as world:
        held = [torch.zeros(25_000_000, device=world.device) for _ in range(count)]  # 100 MB each
    return len(held)


def test_a_limit_of_memory_ends_in_the_device_s_own_error():
    assert launch(hold, 1, 3, memory="600 MB", **OPTIONS) == [3]
    with pytest.raises(helpers.RankOutOfMemory, match=r"(?s)^rank 0 .*600 MB.*asked for .*in hold"):
        launch(hold, 1, 9, memory="600 MB", **OPTIONS)
    assert launch(hold, 1, 7, **OPTIONS) == [7]


def test_more_than_the_device_has_fails_as_torch_says():
    with pytest.raises(helpers.RankError, match="(?i)out of memory|can't allocate memory"):
        launch(hold_too_much, 1, **OPTIONS)


def hold_too_much():
    with helpers.distributed() as world:
        return torch.zeros(2**46, device=world.device).sum().item()


def compute_for_minutes():
    with helpers.distributed() as world:
        helpers.emit("computing")
        if world.device.type == "cuda":
            torch.cuda._sleep(10**12)  # cycles in one kernel: minutes
            torch.cuda.synchronize()
        time.sleep(600)


def test_a_rank_in_a_kernel_can_be_stopped():
    begun = []
    run = launch(compute_for_minutes, 1, background=True, on_event=begun.append, env=ENV)
    end = time.monotonic() + 300
    while not begun and time.monotonic() < end:
        time.sleep(0.05)
    assert begun, run.status
    run.stop()
    assert run.status == "stopped"
    assert launch(add_up, 1, **OPTIONS)[0][2] == 6.0, "the device can be used again"

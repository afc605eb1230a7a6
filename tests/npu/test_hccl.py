"""The process group `hccl` of the emulated NPU: what gloo computes on the CPU, and what HCCL refuses."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from npu_ranks import needs_npu, with_device
from torch import nn

import helpers

pytestmark = needs_npu


def net():
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)),
    )


def ddp_losses(kind, steps=5):
    """Every loss, and the weights, of DDP on this rank's share of a batch; and the gradients of hooks and no_sync."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    with helpers.distributed(kind) as world:
        torch.manual_seed(0)
        model = net().to(world.device)
        places = [world.local_rank] if kind == "npu" else None
        ddp = nn.parallel.DistributedDataParallel(model, device_ids=places, find_unused_parameters=True)
        optimizer = torch.optim.SGD(ddp.parameters(), 0.1, momentum=0.9)
        torch.manual_seed(1 + world.rank)
        losses = []
        for step in range(steps):
            if step == steps - 1:
                ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
            images, labels = torch.randn(4, 3, 8, 8).to(world.device), torch.randint(5, (4,)).to(world.device)
            optimizer.zero_grad()
            with ddp.no_sync():
                F.cross_entropy(ddp(images), labels).backward()
            loss = F.cross_entropy(ddp(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return str(world.device), losses, [p.detach().cpu() for p in model.parameters()]


def test_ddp_on_emulated_cards_is_ddp_on_the_cpu_to_the_last_digit():
    on_cpu = helpers.launch(ddp_losses, 2, "cpu", threads=1, timeout=900)
    on_cards = helpers.launch(with_device, 2, ddp_losses, "npu", threads=1, timeout=900)
    assert [place for place, *_ in on_cards] == ["npu:0", "npu:1"]
    for (_, losses, weights), (_, card_losses, card_weights) in zip(on_cpu, on_cards, strict=True):
        assert losses == card_losses
        assert all(torch.equal(a, b) for a, b in zip(weights, card_weights, strict=True))
    assert on_cards[0][1] != on_cards[1][1]  # the ranks had different data


def synchronized():
    """Output, gradients and statistics of batch norm over two cards, and over both shares in one process on the CPU."""
    with helpers.distributed("npu") as world:
        torch.manual_seed(0)
        x, dy = torch.randn(2, 3, 4, 5, 5).unbind(), torch.randn(2, 3, 4, 5, 5).unbind()
        weight = torch.rand(4)
        model = nn.SyncBatchNorm(4).to(world.device)
        alone, whole = nn.BatchNorm2d(4), torch.cat(x).requires_grad_()
        for each in (model, alone):
            each.weight.data.copy_(weight)
        mine = x[world.rank].to(world.device).requires_grad_()
        y, expected = model(mine), alone(whole)
        y.backward(dy[world.rank].to(world.device))
        expected.backward(torch.cat(dy))
        dist.all_reduce(model.weight.grad)
        got = y, mine.grad, model.weight.grad, model.running_mean, model.running_var
        wanted = expected.chunk(2)[world.rank], whole.grad.chunk(2)[world.rank], alone.weight.grad, *alone.buffers()
        for a, b in zip(got, wanted, strict=False):
            torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-4, atol=1e-5)
        assert model(mine.detach().half()).dtype == torch.float16
        return True


def test_synchronized_batch_norm_is_batch_norm_over_all_cards():
    assert helpers.launch(with_device, 2, synchronized, timeout=900) == [True, True]


def collectives(kind):
    def into(result, call):
        call(result)
        return result.tolist()

    with helpers.distributed(kind) as world:
        rank, here = world.rank, world.device
        mine, everyone = torch.arange(2.0, device=here) + 10 * rank, [torch.empty(2, device=here) for _ in range(2)]
        objects, word = [None] * 2, ["from", rank]
        dist.all_gather(everyone, mine)
        dist.all_gather_object(objects, {"rank": rank})
        dist.broadcast_object_list(word, src=1)
        got = {
            "all_reduce": into(mine.clone(), dist.all_reduce),
            "half": into(torch.ones(2, device=here, dtype=torch.float16), dist.all_reduce),
            "max": into(mine.clone(), lambda t: dist.all_reduce(t, op=dist.ReduceOp.MAX, async_op=True).wait()),
            "all_gather": torch.stack(everyone).tolist(),
            "all_gather_into_tensor": into(torch.empty(4, device=here), lambda t: dist.all_gather_into_tensor(t, mine)),
            "broadcast": into(mine.clone(), lambda t: dist.broadcast(t, src=1)),
            "sent": into(mine.clone(), lambda t: dist.recv(t, 0) if rank else dist.send(t, 1)),
            "objects": [objects, word],
            "reduce_scatter": into(torch.empty(1, device=here), lambda t: dist.reduce_scatter_tensor(t, mine)),
            "all_to_all": into(torch.empty(2, device=here), lambda t: dist.all_to_all_single(t, mine)),
            "reduce": into(mine.clone(), lambda t: dist.reduce(t, 0))[: 2 * (rank == 0)],
        }
        received, other = torch.empty_like(mine), 1 - rank
        pair = dist.P2POp(dist.isend, mine, other), dist.P2POp(dist.irecv, received, other)
        for work in dist.batch_isend_irecv(list(pair)):
            work.wait()
        dist.barrier()
        alone = dist.new_group([0])
        if rank == 0:
            dist.all_reduce(mine, group=alone)
        return got | {"received": received.tolist(), "alone": mine.tolist()}


def test_every_collective_gives_what_gloo_gives_on_the_cpu():
    on_cpu = helpers.launch(collectives, 2, "cpu", timeout=900)
    on_cards = helpers.launch(with_device, 2, collectives, "npu", timeout=900)
    assert on_cards == on_cpu
    assert on_cards[0]["all_reduce"] == [10, 12] and on_cards[0]["received"] == [10, 11]


def refused(*what):
    with helpers.distributed("npu") as world:
        told = []
        for make in what:
            with pytest.raises(RuntimeError) as error:
                dist.all_reduce(make(world.device))
            told.append(str(error.value))
        return told


def test_tensors_that_hccl_does_not_take_are_refused():
    makers = (
        lambda here: torch.ones(3),
        lambda here: torch.ones(3, dtype=torch.float64).to(here),
        lambda here: torch.ones(4, 4, device=here).t()[1:],
    )
    for told in helpers.launch(with_device, 2, refused, *makers, timeout=900):
        assert all(word in text for word, text in zip(("device type cpu", "float64", "contiguous"), told, strict=True))


def on_one_card(card):
    torch.npu.set_device(card)
    dist.init_process_group("hccl")
    dist.all_reduce(torch.ones(1, device="npu"))


def test_two_ranks_on_one_card_are_refused_by_name():
    with pytest.raises(helpers.RankError, match="ranks 0, 1 are all on npu:3(.|\n)*set_device"):
        helpers.launch(with_device, 2, on_one_card, 3, timeout=900)

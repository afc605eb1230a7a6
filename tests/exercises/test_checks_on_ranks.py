"""The checks that run answers on ranks: right answers pass, and each kind of mistake has a hint of its own."""

import torch
from answers import Checks, objection
from shards import needs_fsdp
from torch.distributed.fsdp import fully_shard

from exercises import ranks
from exercises.verdict import SAY


def longest_first(rank, world_size, samples):
    size, rest = divmod(samples, world_size)
    start = rank * size + min(rank, rest)
    return start, start + size + (rank < rest)


class TestStart(Checks):
    notebook = "00_start_here.ipynb"
    right = {
        "slices": [
            longest_first,
            lambda r, w, n: torch.tensor(longest_first(r, w, n)),  # whole numbers of another kind
        ],
        "mean_of_squares": ["number.item() => number ;; float(world.rank**2) => [float(world.rank**2)]"],
    }
    slow = ("mean_of_squares",)
    mistakes = {
        "slices": [
            lambda r, w, n: (r * (n // w), (r + 1) * (n // w)),
            lambda r, w, n: (r * (n // w), n if r == w - 1 else (r + 1) * (n // w)),
            lambda r, w, n: (0, n),
            lambda r, w, n: (n * r // w, n * (r + 1) // w + 1),
            lambda r, w, n: (n * r / w, n * (r + 1) / w),
        ],
        "mean_of_squares": [
            "/ world.size => / 1",
            "dist.all_reduce(number) => dist.barrier() ;; / world.size => / 1",
            "dist.all_reduce(number) => dist.barrier()",
            "world.rank**2 => world.rank",
            "/ world.size => // world.size",
            "/ world.size => / world.size**2",
            "/ world.size => / (1 if world.rank else world.size)",
            "dist.all_reduce(number) => dist.reduce(number, 0) ;; return => return -1 if world.rank else",
            "dist.all_reduce(number) => world.rank or dist.all_reduce(number)",
        ],
    }


class TestDdp(Checks):
    notebook = "03_ddp.ipynb"
    slow = ("accuracy", "ddp_script")
    right = {"accuracy": ["right / samples => right.item() / samples"]}
    mistakes = {
        "accuracy": [
            lambda test, samples: test(range(samples)).float().mean(),
            "dist.get_world_size()) => dist.get_world_size() + 1)",
            (
                "range(dist.get_rank(), samples, dist.get_world_size()) => "
                "DistributedSampler(range(samples), shuffle=False)"
            ),
            "dist.all_reduce(right)\n => \n ;; right / samples => right / len(mine)",
            "return right / => return right + 1 /",
            "test(mine).sum() => test(mine).float().mean() ;; / samples => / dist.get_world_size()",
        ],
        "ddp_script": [
            'dist.init_process_group("gloo") => dist.get_rank = lambda: 0 ;; dist.get_world_size() => 1 ;; '
            "DistributedSampler(data) => DistributedSampler(data, 1, 0) ;; DistributedDataParallel(torch => (torch ;; "
            "model.module => model ;; dist.destroy_process_group() => ",
            "        optimizer.step()\n => ",
            "sampler=sampler => shuffle=True",
            "DistributedSampler(data) => DistributedSampler(data, seed=rank)",
            "DistributedDataParallel(torch => (torch ;; model.module => model",
            "sampler.set_epoch(epoch) => pass",
            "BATCH // dist.get_world_size() => BATCH",
            "if rank == 0:\n    torch.save => if True:\n    torch.save",
            "if rank == 0:\n    torch.save => if False:\n    torch.save",
            "    if rank == 0:\n        print =>     if True:\n        print",
            "dist.init_process_group => dist.init_group",
        ],
    }


class TestFiveErrors(Checks):
    notebook = "more/03_five_errors.ipynb"
    slow = ("ddp_script",)
    mistakes = {
        "ddp_script": [
            "cross_entropy(model(images) => cross_entropy(net(images)",
            (
                "mine = Subset(test_set, range(dist.get_rank(), len(test_set), dist.get_world_size())) => "
                "mine = DistributedSampler(test_set, shuffle=False) ;; DataLoader(mine, 128) => "
                "DataLoader(test_set, 128, sampler=mine)"
            ),
            "BATCH // dist.get_world_size() => BATCH",
        ],
    }


class TestSaving(Checks):
    notebook = "more/03_saving.ipynb"
    mistakes = {
        "resumable": [
            '"optimizer": optimizer.state_dict(), =>  ;; optimizer.load_state_dict(state["optimizer"]) => pass',
            'torch.set_rng_state(state["random"]) => pass',
            "epoch + 1 => epoch",
            "epoch + 1 => epoch + 2",
            'model.load_state_dict(state["model"]) => pass',
            "torch.save({ => str({",
            "range(first, until) => range(first, until + 1)",
        ],
    }


def test_a_rank_that_waits_in_vain_is_named(capsys, monkeypatch):
    monkeypatch.setattr(ranks, "PATIENCE", 2)
    waits = TestStart.answer("mean_of_squares", "dist.all_reduce(number) => dist.recv(number, src=1 - world.rank)")
    assert SAY("alike") in objection("mean_of_squares", waits, capsys)


class TestFailures(Checks):
    notebook = "11_when_it_breaks.ipynb"
    slow = ("everybody",)
    mistakes = {
        "everybody": [
            lambda has_batch: has_batch,
            "MIN => MAX",
            "return flag.item() => flag.item()",
            "== 1 => == 7",
            "flag = => if not has_batch:\n        return False\n    flag =",
            "all_reduce(flag, => reduce(flag, 0, ;; return => return has_batch if dist.get_rank() else",
        ],
        "causes": [
            "different collectives => an exception on one rank",
            "out of memory => an exception on one rank",
            "no set_epoch => another seed on each rank",
            "the metric of one shard => no set_epoch",
            "the raw model is called => another seed on each rank",
            '"E": "the raw model is called", => ',
        ],
    }


def too_early(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for part in (*model.blocks, model):
        fully_shard(part)
    return model, optimizer


class TestSharding(Checks):
    notebook = "12_model_too_large.ipynb"
    right = {"sharded": ["AdamW => SGD"]}
    slow = ("sharded", "fsdp_script")
    marks = dict.fromkeys(slow, [needs_fsdp])
    mistakes = {
        "fsdp_script": [
            '("        dcp.save", "    dcp.save"), => ',
            '("    optimizer = ", "    model = shard(model)\\n    optimizer = "), => ',
            "+ mine * dist.get_rank() => + 0 * dist.get_rank()",
            "+ mine * dist.get_rank() => + BATCH * dist.get_rank()",
            '("        dcp.save", "    dcp.save"), => ("        dcp.save", "    dict"),',
        ],
        "sharded": [
            too_early,
            "fully_shard(block) => pass",
            "fully_shard(block) => fully_shard(block, reshard_after_forward=False)",
            "fully_shard(model) => pass",
            lambda model: (model, torch.optim.AdamW(model.parameters())),
            "return model, optimizer => return model",
            "fully_shard(model) => fully_shard(model).set_gradient_divide_factor(1.0)",
        ],
    }


class TestSplit(Checks):
    notebook = "13_split_the_model.ipynb"
    slow = ("row_parallel", "fastest_layout")
    marks = {"fastest_layout": [needs_fsdp]}
    mistakes = {
        "row_parallel": [
            "weight)) + bias => weight, bias))",
            "Sum.apply(F.linear(part, weight)) => F.linear(part, weight)",
            "Sum.apply => summed",
            "+ bias => ",
            "Sum.apply(F.linear(part, weight)) => Sum.apply(F.linear(part, weight)) / dist.get_world_size()",
            "+ bias => + (bias if dist.get_rank() == 0 else bias.detach())",
            "part, weight)) => part.detach(), weight.detach()))",
            "F.linear(part, weight) => F.linear(part, weight)[:, :2]",
            "return => dist.barrier() if dist.get_rank() else None\n    return",
            (
                "Sum.apply(F.linear(part, weight)) => (Sum.apply(F.linear(part, weight)) if dist.get_rank() == 0 else "
                "Sum.apply(F.linear(part, weight)) * 0)"
            ),
        ],
        "fastest_layout": [
            "return model, => return",
            ", 1 => , 5",
            "fully_shard(block) => pass ;; fully_shard(model) => pass",
            "block.forward = partial(checkpoint, block.forward, use_reentrant=False) => pass",
            "fully_shard(block) => fully_shard(block, reshard_after_forward=False)",
            ", 1 => , 2",
        ],
    }

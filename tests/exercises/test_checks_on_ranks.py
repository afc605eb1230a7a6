"""The checks that run answers on ranks: right answers pass, and each kind of mistake has a hint of its own."""

import io
import os
import threading
from contextlib import nullcontext
from itertools import zip_longest

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from answers import Checks, objection
from shards import needs_fsdp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.nn.functional import all_reduce
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import helpers
from exercises import check, ranks
from exercises.verdict import SAY
from helpers import costmodel, releases


def longest_first(rank, world_size, samples):
    size, rest = divmod(samples, world_size)
    start = rank * size + min(rank, rest)
    return start, start + size + (rank < rest)


@pytest.mark.parametrize(
    "answer",
    [
        longest_first,
        lambda r, w, n: slice(*longest_first(r, w, n)),
        lambda r, w, n: list(longest_first(r, w, n)),
        lambda r, w, n: range(n - longest_first(r, w, n)[1], n - longest_first(r, w, n)[0]),  # from the end
    ],
)
def test_other_right_slices(answer):
    assert check.slices(answer) is True


class TestStart(Checks):
    notebook = "00_start_here.ipynb"
    known = dict(helpers=helpers, torch=torch, dist=dist)
    exercises = {
        "slices": ("slices", "my_slice"),
        "mean_of_squares": ("mean", "mean_of_squares"),
    }
    slow = ("mean_of_squares",)
    mistakes = {
        "slices": [
            (lambda r, w, n: (r * (n // w), (r + 1) * (n // w)), lambda r, w, n: (n * r // w, n * (r + 1) // w - 1)),
            lambda r, w, n: (r * (n // w), n if r == w - 1 else (r + 1) * (n // w)),
            lambda r, w, n: (0, n),
            lambda r, w, n: (n * r // w, n * (r + 1) // w + 1),
            lambda r, w, n: None,
            lambda r, w, n: (n * r / w, n * (r + 1) / w),
            (lambda r, w: (0, 1), "not a function"),
            lambda r, w, n: n // 0,
        ],
        "mean_of_squares": [
            "/ world.size => / 1",
            "dist.all_reduce(number) => dist.barrier() ;; / world.size => / 1",
            "dist.all_reduce(number) => dist.barrier()",
            "world.rank**2 => world.rank",
            "/ world.size => // world.size",
            "/ world.size => / world.size**2",
            "/ world.size => / 2",
            "/ world.size => / (1 if world.rank else world.size)",
            "return => _ =",
            "dist.all_reduce(number) => dist.reduce(number, 0) ;; return => return -1 if world.rank else",
            "dist.all_reduce(number) => world.rank or dist.all_reduce(number)",
            "dist.all_reduce(number) => [0][world.rank]",
            lambda argument: argument,
            0.5,
        ],
    }


def test_a_tensor_is_right_too():
    answer = "number.item() => number ;; float(world.rank**2) => [float(world.rank**2)]"
    assert check.mean_of_squares(TestStart.answer("mean_of_squares", answer)) is True


def last_arrival(messages, per_byte, latency):
    """As in a cell of 03_ddp."""
    free = 0.0
    for size, ready in messages:
        free = max(free, ready) + latency + size * per_byte
    return free


class TestDdp(Checks):
    notebook = "03_ddp.ipynb"
    known = dict(
        torch=torch,
        dist=dist,
        nn=nn,
        F=F,
        os=os,
        costmodel=costmodel,
        DataLoader=DataLoader,
        DistributedSampler=DistributedSampler,
        DistributedDataParallel=DistributedDataParallel,
        last_arrival=last_arrival,
    )
    exercises = {
        "visits": ("ddp-turn-epoch", "visits"),
        "train_on_ranks": ("ddp-turn-loop", "train"),
        "all_reduce_share": ("ddp-turn-share", "all_reduce_share"),
        "bucket_limit": ("ddp-turn-bucket", "bucket_limit"),
        "resumable": ("ddp-turn-resume", "train"),
    }
    slow = ("train_on_ranks",)
    mistakes = {
        "visits": [
            "sampler.set_epoch(epoch) => pass",
            "set_epoch(epoch) => set_epoch(epoch - epochs[0])",
            (
                "set_epoch(epoch) => set_epoch(epoch + rank)",
                "sampler.set_epoch(epoch) => rank or sampler.set_epoch(epoch)",
            ),
            "rank) => rank, shuffle=False)",
            "world_size, rank) => 1, 0)",
            "return seen => return seen[1:]",
            "return seen => return",
            lambda data, rank, world_size, epochs: data[7:],
        ],
        "train_on_ranks": [
            "DistributedDataParallel(make_model()) => make_model()",
            ("sampler=sampler => shuffle=True", "DistributedSampler(data) => DistributedSampler(data, 1, 0)"),
            "batch // dist.get_world_size() => batch",
            "sampler.set_epoch(epoch) => pass",
            "return model => return",
            (
                "cross_entropy(model(inputs), labels) => cross_entropy(model(inputs), labels) / dist.get_world_size()",
                "lr=0.1 => lr=0.1 * dist.get_world_size()",
            ),
            "DistributedDataParallel(make_model()) => make_model() ;; optimizer.step() => "
            "[(dist.all_reduce(p.grad), p.grad.div_(dist.get_world_size())) for p in model.parameters()]\n"
            "            optimizer.step()",
            "sampler.set_epoch(epoch) => sampler.set_epoch(epoch + dist.get_rank())",
            "epochs): => missing):",
        ],
        "all_reduce_share": [
            "* 8 => * 1",
            "2 * (ranks - 1) / ranks => 1",
            "2 * (ranks - 1) / ranks => (ranks - 1) / ranks",
            "* 4 => * 1",
            "sending / (sending + computing) => sending / computing",
            "sending / (sending + computing) => sending",
            "2 * (ranks - 1) / ranks => 2",
            "(ranks - 1) / ranks => max(1, ranks - 1) / ranks",
            "return => _ =",
            "* 8 => * 64",
        ],
        "bucket_limit": [
            lambda gradients, latency, per_byte: 25_000_000,
            lambda gradients, latency, per_byte: 1,
            lambda gradients, latency, per_byte: 250_000,
            lambda gradients, latency, per_byte: 0,
            "return => _ =",
            lambda gradients: 1,
        ],
        "resumable": [
            '"optimizer": optimizer.state_dict(), =>  ;; optimizer.load_state_dict(state["optimizer"]) => pass',
            (
                'torch.set_rng_state(state["random"]) => pass',
                "torch.get_rng_state()} => torch.Generator().get_state()}",
            ),
            ("epoch + 1 => epoch", "first = state => _ = state"),
            "epoch + 1 => epoch + 2",
            'model.load_state_dict(state["model"]) => pass',
            "torch.save({ => str({",
            "until, batches => until",
            "range(first, until) => range(first, until + 1)",
        ],
    }


@pytest.mark.parametrize(
    "of, name, mistake",
    [
        (
            TestDdp,
            "train_on_ranks",
            "model = Dist => if dist.get_rank():\n        return make_model()\n    model = Dist",
        ),
        (TestStart, "mean_of_squares", "dist.all_reduce(number) => dist.recv(number, src=1 - world.rank)"),
    ],
)
def test_a_rank_that_waits_in_vain_is_named(of, name, mistake, capsys, monkeypatch):
    monkeypatch.setattr(ranks, "PATIENCE", 2)
    assert SAY("alike") in objection(name, of.answer(name, mistake), capsys)


def test_a_function_that_cannot_be_sent_to_the_ranks_is_refused(capsys):
    lock = threading.Lock()
    assert "cannot be sent" in objection("train_on_ranks", lambda data, make_model, epochs, batch: lock, capsys)


def torchs_rule(scale, good_steps, found_inf, growth_interval):
    """What a GradScaler itself does, from its own operator."""
    scale, tracker = torch.tensor(scale), torch.tensor(good_steps, dtype=torch.int32)
    torch._amp_update_scale_(scale, tracker, torch.tensor(float(found_inf)), 2.0, 0.5, growth_interval)
    return scale.item(), tracker.item()


def test_the_rule_is_that_of_torch():
    assert check.next_scale(torchs_rule) is True


SCALED_NORM = "nn.utils.get_total_norm([p.grad for p in parameters]).clone()"


class TestPrecision(Checks):
    notebook = "04_mixed_precision.ipynb"
    known = dict(torch=torch, nn=nn, F=F, nullcontext=nullcontext)
    exercises = {
        "next_scale": ("amp-turn-scale", "next_scale"),
        "clipped_step": ("amp-turn-clip", "clipped_step"),
    }
    mistakes = {
        "next_scale": [
            "scale / 2, 0 => scale / 2, good_steps",
            "== growth_interval => > growth_interval",
            "== growth_interval => >= growth_interval - 1",
            "good_steps += 1 => pass",
            "scale * 2, 0 => scale * 2, good_steps",
            "scale / 2 => scale",
            "scale / 2 => scale / 4",
            "scale * 2 => scale * 10",
            lambda scale, good, bad, interval: (scale / 2, 0),
            lambda scale, good, bad, interval: (scale, good, bad),
            (lambda scale, good, bad, interval: scale, lambda scale: scale, 3),
        ],
        "clipped_step": [
            "scaler.unscale_(optimizer) => pass",
            "parameters, max_norm => parameters, float('inf')",
            (
                "scaler.update() => pass",
                "scaler.scale(loss) => loss ;; scaler.unscale_(optimizer) => pass ;; "
                "scaler.step(optimizer) => optimizer.step() ;; scaler.update() => pass",
            ),
            "scaler.step(optimizer) => optimizer.step()",
            "scaler.update() => scaler.update(4 * scaler.get_scale())",
            "return norm => return",
            "scaler.unscale_(optimizer) => pass ;; scaler.step(optimizer) => optimizer.step() ;; "
            f"nn.utils.clip_grad_norm_(parameters, max_norm) => {SCALED_NORM}",
            f"return norm => return {SCALED_NORM}",
            "return norm => return scaled ;; "
            f"scaler.unscale_(optimizer) => scaled = {SCALED_NORM}\n    scaler.unscale_(optimizer)",
            lambda *given: None,
            lambda *given: 1 / 0,
            3,
        ],
    }


def positions(diaries):
    return [k for k, calls in enumerate(zip_longest(*diaries)) if len(set(calls)) > 1]


NEW = 'torch.save(state, f"{path}.new")'


class TestFailures(Checks):
    notebook = "11_when_it_breaks.ipynb"
    known = dict(torch=torch, dist=dist, os=os, io=io)
    exercises = {
        "parted": ("fail-turn-parted", "parted"),
        "everybody": ("fail-turn-everybody", "everybody"),
        "alike": ("fail-turn-alike", "alike"),
        "save_together": ("fail-turn-save", "save_together"),
        "threads_for": ("fail-turn-threads", "threads_for"),
    }
    slow = ("everybody", "alike", "save_together")
    mistakes = {
        "parted": [
            lambda diaries: None,
            "in diaries} => in diaries[:2]}",
            "max(map => min(map",
            "return position => return position + 1",
            lambda diaries: max(positions(diaries), default=None),
            lambda diaries: 0,
            lambda diaries: diaries[7],
        ],
        "everybody": [
            lambda has_batch: has_batch,
            "MIN => MAX",
            "return flag.item() => flag.item()",
            "== 1 => == 7",
            "flag = => if not has_batch:\n        return False\n    flag =",
            "all_reduce(flag, => reduce(flag, 0, ;; return => return has_batch if dist.get_rank() else",
            lambda: True,
        ],
        "alike": [
            "for p in parameters]) => for p in parameters]).sum()",
            "return => for p in parameters:\n        dist.broadcast(p.data, 0)\n    return",
            lambda parameters: True,
            lambda parameters: False,
            lambda parameters: None,
        ],
        "save_together": [
            f'{NEW} => torch.save(state, path) ;; os.replace(f"{{path}}.new", path) => pass',
            "dist.barrier() => pass",
            "rank == 0 => rank == 1",
            "    dist.barrier() =>         dist.barrier()",
        ],
        "threads_for": [
            (lambda cores, ranks: cores, lambda cores, ranks: max(1, round(cores / ranks))),
            lambda cores, ranks: cores // ranks,
            lambda cores, ranks: 1,
            lambda cores, ranks: cores / ranks,
            lambda cores: cores,
        ],
    }


def test_save_together_takes_other_ways():
    write = "whole = io.BytesIO()\n        torch.save(state, whole)\n        file.write(whole.getvalue())"
    answer = f'{NEW} => file = open(f"{{path}}.new", "wb")\n        {write}\n        file.close()'
    assert check.save_together(TestFailures.answer("save_together", answer))


def states(parameters, ranks, way):
    whole, shared = {"DDP": (16, 0), "ZeRO-1": (8, 8), "ZeRO-2": (4, 12), "ZeRO-3": (0, 16)}[way]
    return parameters * (whole + shared / ranks)


def too_early(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for part in (*model.blocks, model):
        fully_shard(part)
    return model, optimizer


class TestSharding(Checks):
    notebook = "12_model_too_large.ipynb"
    known = dict(torch=torch, fully_shard=fully_shard)
    exercises = {"bytes_per_rank": ("turn-bytes", "bytes_per_rank"), "sharded": ("turn-shard", "sharded")}
    slow = ("sharded",)
    marks = dict.fromkeys(slow, [needs_fsdp])
    mistakes = {
        "bytes_per_rank": [
            lambda p, r, w: states(p, r, w) / 4,
            lambda p, r, w: states(p, r, w) * r,
            (lambda p, r, w: 4 * p, lambda p, r, w: 4 * p / r),
            "8 * parameters => 4 * parameters",
            (lambda p, r, w: states(p, r, "ZeRO-2" if w == "ZeRO-1" else w), lambda p, r, w: states(p, r, "DDP")),
            lambda p, r, w: 7 * p,
            "return => _ =",
            lambda p, r: 16 * p,
        ],
        "sharded": [
            too_early,
            "fully_shard(block) => pass",
            "fully_shard(block) => fully_shard(block, reshard_after_forward=False)",
            "fully_shard(model) => pass",
            (
                lambda model: (model, torch.optim.AdamW(model.parameters())),
                "fully_shard(block) => pass ;; fully_shard(model) => pass",
            ),
            ("return model, optimizer => return model", lambda model: None),
            "fully_shard(model) => fully_shard(model).set_gradient_divide_factor(1.0)",
            lambda model: 1 / 0,
            3,
        ],
    }


def test_a_release_that_cannot_shard_on_cpus_is_named(monkeypatch, capsys):
    monkeypatch.setattr(releases, "version_of", lambda package: "2.7.1")
    assert "needs torch 2.8 or newer, and this is 2.7.1" in objection("sharded", print, capsys)


@needs_fsdp
def test_another_optimizer_after_fully_shard_is_right_too():
    assert check.sharded(TestSharding.answer("sharded", "AdamW => SGD"))


class Sum(torch.autograd.Function):
    """As in a cell of 13_split_the_model."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class TestSplit(Checks):
    notebook = "13_split_the_model.ipynb"
    known = dict(torch=torch, dist=dist, F=F, Sum=Sum, summed=all_reduce)
    exercises = {
        "row_parallel": ("split-turn-row", "row_parallel"),
        "micro_batches": ("split-turn-micro", "micro_batches"),
    }
    slow = ("row_parallel",)
    mistakes = {
        "row_parallel": [
            ("weight)) + bias => weight, bias))", "weight)) + bias => weight) + bias)"),
            ("Sum.apply(F.linear(part, weight)) => F.linear(part, weight)", "Sum.apply => "),
            "Sum.apply => summed",
            "+ bias => ",
            (
                "Sum.apply(F.linear(part, weight)) => Sum.apply(F.linear(part, weight)) / dist.get_world_size()",
                "weight)) + bias => weight, bias)) / dist.get_world_size()",
            ),
            "+ bias => + (bias if dist.get_rank() == 0 else bias.detach())",
            "return => _ =",
            ("part, weight)) => part.detach(), weight.detach()))", "weight)) => weight)).detach()"),
            "F.linear(part, weight) => F.linear(part, weight)[:, :2]",
            "return => dist.barrier() if dist.get_rank() else None\n    return",
            "Sum.apply(F.linear(part, weight)) => (Sum.apply(F.linear(part, weight)) if dist.get_rank() == 0 else "
            "Sum.apply(F.linear(part, weight)) * 0)",
            lambda part: part,
            3,
        ],
        "micro_batches": [
            "(m + stages - 1) => m",
            "batch % m == 0 and => ",
            "< most => <= most",
            "return None => return batch",
            (lambda stages, batch, most: batch, "(stages - 1) / (m + stages - 1) => stages / (m + stages)"),
            "return m => return m + 0.5",
            (lambda stages, batch, most: None, "return m => return"),
            lambda *given: 1 / 0,
            4,
            "return m => return 'm'",
            "range(1, batch + 1) => range(0, 1)",
        ],
    }

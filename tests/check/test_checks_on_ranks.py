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
from exercises import Checks, objection
from torch import nn

import helpers
from helpers import check
from helpers.check import ranks


def longest_first(rank, world_size, samples):
    size, rest = divmod(samples, world_size)
    start = rank * size + min(rank, rest)
    return start, start + size + (rank < rest)


@pytest.mark.parametrize("answer", [
    longest_first, lambda r, w, n: slice(*longest_first(r, w, n)), lambda r, w, n: list(longest_first(r, w, n)),
    lambda r, w, n: range(n - longest_first(r, w, n)[1], n - longest_first(r, w, n)[0]),  # from the end
])  # fmt: skip
def test_other_right_slices(answer):
    assert check.slices(answer) is True


class TestStart(Checks):
    notebook = "00_start_here.ipynb"
    known = dict(helpers=helpers, torch=torch, dist=dist)
    exercises = {
        "slices": ("slices", "my_slice"), "mean_of_squares": ("mean", "mean_of_squares"),
    }  # fmt: skip
    slow = ("mean_of_squares",)
    mistakes = {
        "slices": [
            lambda r, w, n: (r * (n // w), (r + 1) * (n // w)),
            lambda r, w, n: (r * (n // w), n if r == w - 1 else (r + 1) * (n // w)), lambda r, w, n: (0, n),
            lambda r, w, n: (n * r // w, n * (r + 1) // w - 1), lambda r, w, n: (n * r // w, n * (r + 1) // w + 1),
            lambda r, w, n: None, lambda r, w, n: (n * r / w, n * (r + 1) / w),
            (lambda r, w: (0, 1), "not a function"), lambda r, w, n: n // 0,
        ],
        "mean_of_squares": [
            "/ world.size => / 1", "dist.all_reduce(number) => dist.barrier() ;; / world.size => / 1",
            "dist.all_reduce(number) => dist.barrier()",
            "world.rank**2 => world.rank", "/ world.size => // world.size", "/ world.size => / world.size**2",
            "/ world.size => / 2", "/ world.size => / (1 if world.rank else world.size)", "return => _ =",
            "dist.all_reduce(number) => dist.reduce(number, 0) ;; return => return -1 if world.rank else",
            "dist.all_reduce(number) => world.rank or dist.all_reduce(number)",
            "dist.all_reduce(number) => [0][world.rank]", lambda argument: argument, 0.5,
        ],
    }  # fmt: skip


def test_a_tensor_is_right_too():
    answer = "number.item() => number ;; float(world.rank**2) => [float(world.rank**2)]"
    assert check.mean_of_squares(TestStart.answer("mean_of_squares", answer)) is True


class TestDdp(Checks):
    notebook = "03_ddp.ipynb"
    known = dict(torch=torch, dist=dist)
    exercises = {
        "shard": ("ddp-turn-shard", "shard"), "average_gradients": ("ddp-turn-average", "average_gradients"),
        "global_accuracy": ("ddp-turn-accuracy", "global_accuracy"),
    }  # fmt: skip
    slow = ("average_gradients", "global_accuracy")
    mistakes = {
        "shard": [
            lambda i, r, w: i[r * (len(i) // w) :][: len(i) // w],
            (lambda i, r, w: (i + i)[r * -(-len(i) // w) :][: -(-len(i) // w)], lambda i, r, w: i),
            lambda i, r, w: i[r * -(-len(i) // w) :][: -(-len(i) // w)],
            lambda i, r, w: i[r * (len(i) // w) : (r + 1) * (len(i) // w) + (r < w - 1)],
            lambda i, r, w: list(range(len(i)))[r::w], (lambda i, r, w: i[r], lambda i, r: i),
        ],
        "average_gradients": [
            "p.grad /= world_size => pass", "/= world_size => /= 2", "p.grad => p.data",
            "dist.all_reduce(p.grad) => pass", "dist.all_reduce(p.grad) => pass ;; p.grad /= world_size => pass",
            "all_reduce(p.grad) => reduce(p.grad, 0) ;; /= world_size => /= 1 if dist.get_rank() else world_size",
            "p.grad /= world_size => p.grad = None", "in parameters => in parameters['planted']", 7,
        ],
        "global_accuracy": [
            "[correct, count] => [correct / count, 1]", "dist.all_reduce(sums) => pass", "/ sums[1] => / count",
            "dist.all_reduce(sums) => dist.reduce(sums, 0) ;; return => return 0 if dist.get_rank() else",
            "return => _ =", lambda correct, count: 0.5,
        ],
    }  # fmt: skip


@pytest.mark.parametrize("of, name, mistake", [
    (TestDdp, "average_gradients", "in parameters => in parameters[: 1 - dist.get_rank()]"),
    (TestStart, "mean_of_squares", "dist.all_reduce(number) => dist.recv(number, src=1 - world.rank)"),
    pytest.param(TestDdp, "global_accuracy", "dist.all_reduce(sums) => dist.get_rank() or dist.all_reduce(sums)",
                 marks=pytest.mark.long),
])  # fmt: skip
def test_a_rank_that_waits_in_vain_is_named(of, name, mistake, capsys, monkeypatch):
    monkeypatch.setattr(ranks, "PATIENCE", 2)
    assert ranks.ALIKE in objection(name, of.answer(name, mistake), capsys)


def test_a_function_that_cannot_be_sent_to_the_ranks_is_refused(capsys):
    lock = threading.Lock()
    assert "cannot be sent" in objection("average_gradients", lambda parameters, world_size: lock, capsys)


def torchs_rule(scale, good_steps, found_inf, growth_interval):
    """What a GradScaler itself does, from its own operator."""
    scale, tracker = torch.tensor(scale), torch.tensor(good_steps, dtype=torch.int32)
    torch._amp_update_scale_(scale, tracker, torch.tensor(float(found_inf)), 2.0, 0.5, growth_interval)
    return scale.item(), tracker.item()


def test_the_rule_is_that_of_torch():
    assert check.next_scale(torchs_rule) is True


SCALED_NORM = "nn.utils.get_total_norm([p.grad for p in parameters]).clone()"
STEP_IN_LOOP = "\n            scaler.step(optimizer)\n            scaler.update()"


class TestPrecision(Checks):
    notebook = "04_mixed_precision.ipynb"
    known = dict(torch=torch, nn=nn, F=F, nullcontext=nullcontext)
    exercises = {
        "next_scale": ("amp-turn-scale", "next_scale"), "clipped_step": ("amp-turn-clip", "clipped_step"),
        "accumulate": ("amp-turn-accumulate", "accumulate"),
    }  # fmt: skip
    slow = ("accumulate",)
    mistakes = {
        "next_scale": [
            "scale / 2, 0 => scale / 2, good_steps", "== growth_interval => > growth_interval",
            "== growth_interval => >= growth_interval - 1", "good_steps += 1 => pass",
            "scale * 2, 0 => scale * 2, good_steps", "scale / 2 => scale", "scale / 2 => scale / 4",
            "scale * 2 => scale * 10", lambda scale, good, bad, interval: (scale / 2, 0),
            lambda scale, good, bad, interval: (scale, good, bad),
            (lambda scale, good, bad, interval: scale, lambda scale: scale, 3),
        ],
        "clipped_step": [
            "scaler.unscale_(optimizer) => pass", "parameters, max_norm => parameters, float('inf')",
            ("scaler.update() => pass", "scaler.scale(loss) => loss ;; scaler.unscale_(optimizer) => pass ;; "
             "scaler.step(optimizer) => optimizer.step() ;; scaler.update() => pass"),
            "scaler.step(optimizer) => optimizer.step()", "scaler.update() => scaler.update(4 * scaler.get_scale())",
            "return norm => return",
            "scaler.unscale_(optimizer) => pass ;; scaler.step(optimizer) => optimizer.step() ;; "
            f"nn.utils.clip_grad_norm_(parameters, max_norm) => {SCALED_NORM}", f"return norm => return {SCALED_NORM}",
            "return norm => return scaled ;; "
            f"scaler.unscale_(optimizer) => scaled = {SCALED_NORM}\n    scaler.unscale_(optimizer)",
            lambda *given: None, lambda *given: 1 / 0, 3,
        ],
        "accumulate": [
            "if last else => if True else", "if last else => if False else", "k == len => 1 == k or 0 * len",
            "/ len(micro_batches) => / 1", "last = k => optimizer.zero_grad()\n        last = k",
            f"\n    scaler.step(optimizer)\n    scaler.update() => {STEP_IN_LOOP} ;; if last else => if True else",
            "scaler.update() => pass", "scaler.step(optimizer) => scaler.unscale_(optimizer)",
            "scaler.step(optimizer) => optimizer.step() ;; scaler.update() => pass", lambda *given: 1 / 0, 3,
        ],
    }  # fmt: skip


def positions(diaries):
    return [k for k, calls in enumerate(zip_longest(*diaries)) if len(set(calls)) > 1]


NEW = 'torch.save(state, f"{path}.new")'


class TestFailures(Checks):
    notebook = "11_when_it_breaks.ipynb"
    known = dict(torch=torch, dist=dist, os=os, io=io)
    exercises = {
        "parted": ("fail-turn-parted", "parted"), "everybody": ("fail-turn-everybody", "everybody"),
        "alike": ("fail-turn-alike", "alike"), "save_together": ("fail-turn-save", "save_together"),
        "threads_for": ("fail-turn-threads", "threads_for"),
    }  # fmt: skip
    slow = ("everybody", "alike", "save_together")
    mistakes = {
        "parted": [
            lambda diaries: None, "in diaries} => in diaries[:2]}", "max(map => min(map",
            "return position => return position + 1", lambda diaries: max(positions(diaries), default=None),
            lambda diaries: 0, lambda diaries: diaries[7],
        ],
        "everybody": [
            lambda has_batch: has_batch, "MIN => MAX", "return flag.item() => flag.item()", "== 1 => == 7",
            "flag = => if not has_batch:\n        return False\n    flag =",
            "all_reduce(flag, => reduce(flag, 0, ;; return => return has_batch if dist.get_rank() else", lambda: True,
        ],
        "alike": [
            "for p in parameters]) => for p in parameters]).sum()",
            "return => for p in parameters:\n        dist.broadcast(p.data, 0)\n    return",
            lambda parameters: True, lambda parameters: False, lambda parameters: None,
        ],
        "save_together": [
            f'{NEW} => torch.save(state, path) ;; os.replace(f"{{path}}.new", path) => pass', "dist.barrier() => pass",
            "rank == 0 => rank == 1", "    dist.barrier() =>         dist.barrier()",
        ],
        "threads_for": [
            (lambda cores, ranks: cores, lambda cores, ranks: max(1, round(cores / ranks))),
            lambda cores, ranks: cores // ranks, lambda cores, ranks: 1, lambda cores, ranks: cores / ranks,
            lambda cores: cores,
        ],
    }  # fmt: skip


def test_save_together_takes_other_ways():
    write = "whole = io.BytesIO()\n        torch.save(state, whole)\n        file.write(whole.getvalue())"
    answer = f'{NEW} => file = open(f"{{path}}.new", "wb")\n        {write}\n        file.close()'
    assert check.save_together(TestFailures.answer("save_together", answer))

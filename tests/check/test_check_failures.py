"""The checks of notebook 11: right answers pass, and each kind of mistake has a hint of its own."""

import io
import os
from itertools import zip_longest

import torch
import torch.distributed as dist
from exercises import Checks

from helpers import check


def positions(diaries):
    return [k for k, calls in enumerate(zip_longest(*diaries)) if len(set(calls)) > 1]


def agreed(has_batch, op, keep=bool):
    flag = torch.tensor(float(has_batch))
    dist.all_reduce(flag, op)
    return keep(flag.item())


def only_those_with_work_call(has_batch):
    return has_batch and agreed(has_batch, dist.ReduceOp.MIN)


def tells_rank_0_only(has_batch):
    flag = torch.tensor(float(has_batch))
    dist.reduce(flag, 0, dist.ReduceOp.MIN)
    return bool(flag) if dist.get_rank() == 0 else has_batch


def flat(parameters):
    return torch.cat([p.detach().flatten() for p in parameters])


def the_same_sum(parameters):
    low, high = flat(parameters).sum(), flat(parameters).sum()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    return torch.equal(low, high)


def mends_what_it_finds(parameters):
    before = flat(parameters)
    for p in parameters:
        dist.broadcast(p.data, 0)
    return agreed(torch.equal(before, flat(parameters)), dist.ReduceOp.MIN)


def not_in_one_go(state, path, rank):
    if rank == 0:
        torch.save(state, path)
    dist.barrier()


def nobody_waits(state, path, rank):
    if rank == 0:
        torch.save(state, f"{path}.new")
        os.replace(f"{path}.new", path)


def the_last_rank_saves(state, path, rank):
    if rank == 1:
        torch.save(state, path)
    dist.barrier()


def waits_for_itself(state, path, rank):
    if rank == 0:
        nobody_waits(state, path, rank)
        dist.barrier()


def through_memory(state, path, rank):
    if rank == 0:
        whole = io.BytesIO()
        torch.save(state, whole)
        with open(f"{path}.new", "wb") as file:
            file.write(whole.getvalue())
        os.replace(f"{path}.new", path)
    dist.barrier()


def test_save_together_takes_other_ways(capsys):
    assert check.save_together(through_memory)


class TestFailures(Checks):
    notebook = "11_when_it_breaks.ipynb"
    known = dict(torch=torch, dist=dist, os=os)
    exercises = {
        "parted": ("fail-turn-parted", "parted"), "everybody": ("fail-turn-everybody", "everybody"),
        "alike": ("fail-turn-alike", "alike"), "save_together": ("fail-turn-save", "save_together"),
        "threads_for": ("fail-turn-threads", "threads_for"),
    }  # fmt: skip
    slow = ("everybody", "alike", "save_together")
    mistakes = {
        "parted": [
            lambda diaries: None, lambda diaries: next(iter(positions(diaries[:2])), None),
            lambda diaries: next((k for k in positions(diaries) if k < len(min(diaries, key=len))), None),
            lambda diaries: next((k + 1 for k in positions(diaries)), None),
            lambda diaries: max(positions(diaries), default=None), lambda diaries: 0, lambda diaries: diaries[7],
        ],
        "everybody": [
            lambda has_batch: has_batch, lambda has_batch: agreed(has_batch, dist.ReduceOp.MAX),
            lambda has_batch: agreed(has_batch, dist.ReduceOp.MIN, lambda value: None),
            lambda has_batch: agreed(has_batch, dist.ReduceOp.MIN, lambda value: False), only_those_with_work_call,
            tells_rank_0_only, lambda: True,
        ],
        "alike": [
            the_same_sum, mends_what_it_finds, lambda parameters: True, lambda parameters: False,
            lambda parameters: None,
        ],
        "save_together": [
            not_in_one_go, nobody_waits, the_last_rank_saves, waits_for_itself,
        ],
        "threads_for": [
            (lambda cores, ranks: cores, lambda cores, ranks: max(1, round(cores / ranks))),
            lambda cores, ranks: cores // ranks, lambda cores, ranks: 1, lambda cores, ranks: cores / ranks,
            lambda cores: cores,
        ],
    }  # fmt: skip

"""The checks of notebook 11 accept its solutions and object to mistakes, each in words of its own."""

import io
import os
import sys
from itertools import zip_longest

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from exercises import assert_verdicts, objection

from helpers import check

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # else every rank imports pytest to find a mistake
EXERCISES = [
    ("parted", "fail-turn-parted"), ("everybody", "fail-turn-everybody"), ("alike", "fail-turn-alike"),
    ("save_together", "fail-turn-save"), ("threads_for", "fail-turn-threads"),
]  # fmt: skip


@pytest.mark.parametrize("name, cell", EXERCISES)
def test_the_solution_is_right_and_the_first_attempt_is_not(name, cell, capsys):
    assert_verdicts(check, name, "11_when_it_breaks.ipynb", cell, capsys, torch=torch, dist=dist, os=os)


# -- parted ---------------------------------------------------------------------------------


def positions(diaries):
    return [k for k, calls in enumerate(zip_longest(*diaries)) if len(set(calls)) > 1]


@pytest.mark.parametrize("mistake, words", [
    (lambda diaries: None, "which is the first that differs"),
    (lambda diaries: next(iter(positions(diaries[:2])), None), "looked at all ranks"),
    (lambda diaries: next((k for k in positions(diaries) if k < len(min(diaries, key=len))), None), "has ended its"),
    (lambda diaries: next((k + 1 for k in positions(diaries)), None), "Count from 0"),
    (lambda diaries: max(positions(diaries), default=None), "parted before"),
    (lambda diaries: 0, "never part"),
    (lambda diaries: diaries[7], "IndexError"),
])  # fmt: skip
def test_parted_objects_to(mistake, words, capsys):
    assert words in objection(check, "parted", mistake, capsys)


# -- everybody ------------------------------------------------------------------------------


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


@pytest.mark.parametrize("mistake, words", [
    (lambda has_batch: has_batch, "answers for itself"),
    (lambda has_batch: agreed(has_batch, dist.ReduceOp.MAX), "any rank has a batch"),
    (lambda has_batch: agreed(has_batch, dist.ReduceOp.MIN, lambda value: None), "returned None"),
    (lambda has_batch: agreed(has_batch, dist.ReduceOp.MIN, lambda value: False), "never says True"),
    (only_those_with_work_call, "same collectives"),
    (tells_rank_0_only, "do not agree"),
    (lambda: True, "TypeError"),
])  # fmt: skip
def test_everybody_objects_to(mistake, words, capsys):
    assert words in objection(check, "everybody", mistake, capsys)


# -- alike ----------------------------------------------------------------------------------


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


@pytest.mark.parametrize("mistake, words", [
    (the_same_sum, "The same sum"),
    (mends_what_it_finds, "work on a copy"),
    (lambda parameters: True, "What does your function compare"),
    (lambda parameters: False, "equal to the last bit"),
    (lambda parameters: None, "returned None"),
])  # fmt: skip
def test_alike_objects_to(mistake, words, capsys):
    assert words.lower() in objection(check, "alike", mistake, capsys).lower()


# -- save_together --------------------------------------------------------------------------


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


@pytest.mark.parametrize("mistake, words", [
    (not_in_one_go, "os.replace"),
    (nobody_waits, "would load the old file"),
    (the_last_rank_saves, "rank 0 has not written"),
    (waits_for_itself, "same collectives"),
])  # fmt: skip
def test_save_together_objects_to(mistake, words, capsys):
    assert words in objection(check, "save_together", mistake, capsys)


def test_save_together_takes_other_ways(capsys):
    assert check.save_together(through_memory)


# -- threads_for ----------------------------------------------------------------------------


@pytest.mark.parametrize("mistake, words", [
    (lambda cores, ranks: cores, "take turns"),
    (lambda cores, ranks: cores // ranks, "at least one"),
    (lambda cores, ranks: 1, "without work"),
    (lambda cores, ranks: max(1, round(cores / ranks)), "take turns"),
    (lambda cores, ranks: cores / ranks, "no whole number"),
    (lambda cores: cores, "TypeError"),
])  # fmt: skip
def test_threads_for_objects_to(mistake, words, capsys):
    assert words in objection(check, "threads_for", mistake, capsys)

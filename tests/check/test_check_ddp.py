"""The checks of notebook 03 accept its solutions and object to mistakes, each in words of its own."""

import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from exercises import assert_verdicts, objection

from helpers import check
from helpers.check import ranks

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # else every rank imports pytest to find a mistake

EXERCISES = [
    ("shard", "ddp-turn-shard"), ("average_gradients", "ddp-turn-average"), ("global_accuracy", "ddp-turn-accuracy")
]  # fmt: skip


@pytest.mark.parametrize("name, cell", EXERCISES)
def test_the_solution_is_right_and_the_first_attempt_is_not(name, cell, capsys):
    assert_verdicts(check, name, "03_ddp.ipynb", cell, capsys, torch=torch, dist=dist)


def contiguous(indices, rank, world_size, size):
    return indices[rank * size : (rank + 1) * size]


@pytest.mark.parametrize("mistake, words", [
    (lambda i, r, w: contiguous(i, r, w, len(i) // w), "belong to no rank"),
    (lambda i, r, w: contiguous(i + i, r, w, -(-len(i) // w)), "Do not pad"),
    (lambda i, r, w: contiguous(i, r, w, -(-len(i) // w)), "spread the remainder"),
    (lambda i, r, w: i[r * (len(i) // w) : (r + 1) * (len(i) // w) + (r < w - 1)], "given out twice"),
    (lambda i, r, w: list(range(len(i)))[r::w], "not their positions"),
    (lambda i, r, w: i, "Do not pad"),
    (lambda i, r, w: i[r], "TypeError"),
    (lambda i, r: i, "TypeError"),
])  # fmt: skip
def test_shard_objects_to(mistake, words, capsys):
    assert words in objection(check, "shard", mistake, capsys)


def forgets_to_divide(parameters, world_size):
    for p in parameters:
        dist.all_reduce(p.grad)


def divides_by_two(parameters, world_size):
    for p in parameters:
        dist.all_reduce(p.grad)
        p.grad /= 2


def averages_weights(parameters, world_size):
    for p in parameters:
        dist.all_reduce(p.data)
        p.data /= world_size


def only_divides(parameters, world_size):
    for p in parameters:
        p.grad /= world_size


def does_nothing(parameters, world_size):
    pass


def only_rank_0_knows(parameters, world_size):
    for p in parameters:
        dist.reduce(p.grad, 0)
        if dist.get_rank() == 0:
            p.grad /= world_size


def loses_the_gradients(parameters, world_size):
    for p in parameters:
        p.grad = None


def raises(parameters, world_size):
    raise KeyError("planted")


def rank_0_goes_alone(parameters, world_size):
    if dist.get_rank() == 0:
        dist.all_reduce(parameters[0].grad)


@pytest.mark.parametrize("mistake, words", [
    (forgets_to_divide, "2 times too large"), (divides_by_two, "on 3 ranks: right on 2 ranks"),
    (averages_weights, "weights themselves"), (only_divides, "not the gradients"), (does_nothing, "its own gradients"),
    (only_rank_0_knows, "some ranks"), (loses_the_gradients, "None"), (raises, "KeyError"), (7, "a function"),
])  # fmt: skip
def test_average_gradients_objects_to(mistake, words, capsys):
    assert words in objection(check, "average_gradients", mistake, capsys)


def test_a_rank_that_waits_in_vain_is_told(capsys, monkeypatch):
    monkeypatch.setattr(ranks, "PATIENCE", 2)
    assert ranks.ALIKE in objection(check, "average_gradients", rank_0_goes_alone, capsys)


def rank_0_adds_up_alone(correct, count):
    if dist.get_rank() == 0:
        dist.all_reduce(torch.tensor([correct, count]))
    return 0.6


def test_ranks_that_do_different_things_are_told(capsys, monkeypatch):
    monkeypatch.setattr(ranks, "PATIENCE", 2)
    assert ranks.ALIKE in objection(check, "global_accuracy", rank_0_adds_up_alone, capsys)


def test_a_function_that_cannot_be_sent_to_the_ranks_is_told(capsys):
    lock = __import__("threading").Lock()
    said = objection(check, "average_gradients", lambda parameters, world_size: lock, capsys)
    assert "cannot be sent" in said


def mean_of_rates(correct, count):
    rate = torch.tensor(correct / count)
    dist.all_reduce(rate)
    return rate / dist.get_world_size()


def own_shard(correct, count):
    return correct / count


def own_count(correct, count):
    total = torch.tensor(float(correct))
    dist.all_reduce(total)
    return total / count


def rank_0_only(correct, count):
    sums = torch.tensor([correct, count], dtype=torch.float64)
    dist.reduce(sums, 0)
    return sums[0] / sums[1] if dist.get_rank() == 0 else 0


def forgets_to_answer(correct, count):
    dist.all_reduce(torch.tensor(float(correct)))


@pytest.mark.parametrize("mistake, words", [
    (mean_of_rates, "mean of the ranks' rates"), (own_shard, "its own shard"), (own_count, "how many ranks"),
    (rank_0_only, "rank 0 knows"), (forgets_to_answer, "TypeError"), (lambda correct, count: 0.5, "Add up two numbers"),
])  # fmt: skip
def test_global_accuracy_objects_to(mistake, words, capsys):
    assert words in objection(check, "global_accuracy", mistake, capsys)

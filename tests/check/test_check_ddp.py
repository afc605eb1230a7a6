"""The checks of notebook 03: right answers pass, and each kind of mistake has a hint of its own."""

import pytest
import torch
import torch.distributed as dist
from exercises import Checks, objection

from helpers.check import ranks


def contiguous(indices, rank, world_size, size):
    return indices[rank * size : (rank + 1) * size]


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


def rank_0_adds_up_alone(correct, count):
    if dist.get_rank() == 0:
        dist.all_reduce(torch.tensor([correct, count]))
    return 0.6


@pytest.mark.parametrize("name, mistake", [
    ("average_gradients", rank_0_goes_alone),
    pytest.param("global_accuracy", rank_0_adds_up_alone, marks=pytest.mark.long),
])  # fmt: skip
def test_a_rank_that_waits_in_vain_is_named(name, mistake, capsys, monkeypatch):
    monkeypatch.setattr(ranks, "PATIENCE", 2)
    assert ranks.ALIKE in objection(name, mistake, capsys)


def test_a_function_that_cannot_be_sent_to_the_ranks_is_refused(capsys):
    lock = __import__("threading").Lock()
    assert "cannot be sent" in objection("average_gradients", lambda parameters, world_size: lock, capsys)


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
            lambda i, r, w: contiguous(i, r, w, len(i) // w),
            (lambda i, r, w: contiguous(i + i, r, w, -(-len(i) // w)), lambda i, r, w: i),
            lambda i, r, w: contiguous(i, r, w, -(-len(i) // w)),
            lambda i, r, w: i[r * (len(i) // w) : (r + 1) * (len(i) // w) + (r < w - 1)],
            lambda i, r, w: list(range(len(i)))[r::w], (lambda i, r, w: i[r], lambda i, r: i),
        ],
        "average_gradients": [
            forgets_to_divide, divides_by_two, averages_weights, only_divides, does_nothing, only_rank_0_knows,
            loses_the_gradients, raises, 7,
        ],
        "global_accuracy": [
            mean_of_rates, own_shard, own_count, rank_0_only, forgets_to_answer, lambda correct, count: 0.5,
        ],
    }  # fmt: skip

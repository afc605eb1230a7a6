"""The checks of 00_start_here: right answers pass, and each kind of mistake gets a hint of its own."""

import pytest
import torch
import torch.distributed as dist
from exercises import Checks, objection

import helpers
from helpers import check
from helpers.check import ranks


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


def all_reduced(before, after, op=dist.ReduceOp.SUM, dtype=torch.float32):
    """A function for launch: `before(rank, size)`, then all_reduce, then `after(number, rank, size)`."""

    def answer():
        with helpers.distributed() as world:
            number = torch.tensor(before(world.rank, world.size), dtype=dtype, device=world.device)
            dist.all_reduce(number, op=op)
            return after(number, world.rank, world.size)

    return answer


def wrong_means():
    def mean_on_rank_0():
        with helpers.distributed() as world:
            number = torch.tensor(float(world.rank**2))
            dist.reduce(number, 0)
            return number / world.size if world.rank == 0 else -1

    def without_all_reduce():
        with helpers.distributed() as world:
            return world.rank**2

    def raises_on_rank_1():
        with helpers.distributed() as world:
            if world.rank == 1:
                raise IndexError("no such image")

    def only_rank_0_calls():
        with helpers.distributed() as world:
            number = torch.tensor(float(world.rank**2))
            if world.rank == 0:
                dist.all_reduce(number)
            return number / world.size

    square = lambda r, n: r**2  # noqa: E731
    return [
        all_reduced(square, lambda x, r, n: x),
        without_all_reduce,
        all_reduced(lambda r, n: r**2 / n, lambda x, r, n: r**2 / n),
        all_reduced(lambda r, n: r, lambda x, r, n: x / n),
        all_reduced(square, lambda x, r, n: x // n, dtype=torch.int64),
        all_reduced(square, lambda x, r, n: x / n**2),
        all_reduced(square, lambda x, r, n: x / 2),
        all_reduced(square, lambda x, r, n: x / n if r == 0 else x),
        all_reduced(square, lambda x, r, n: None),
        mean_on_rank_0,
        only_rank_0_calls,
        raises_on_rank_1,
        lambda argument: argument,
        0.5,
    ]


def test_a_tensor_is_right_too():
    assert check.mean_of_squares(all_reduced(lambda r, n: [float(r**2)], lambda x, r, n: x / n)) is True


def test_ranks_that_wait_for_ever_are_stopped(capsys, monkeypatch):
    def waits():
        with helpers.distributed() as world:
            dist.recv(torch.zeros(1), src=1 - world.rank)

    monkeypatch.setattr(ranks, "PATIENCE", 2)
    assert ranks.ALIKE in objection("mean_of_squares", waits, capsys)


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
        "mean_of_squares": wrong_means(),
    }  # fmt: skip

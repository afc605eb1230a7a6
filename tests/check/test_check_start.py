"""The checks of 00_start_here: right answers pass, and each kind of mistake gets a hint of its own."""

import re
from pathlib import Path

import nbformat
import pytest
import torch
import torch.distributed as dist

import helpers
from helpers import check

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "00_start_here.ipynb"
CELLS = {cell.id: cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells}
EXERCISES = {"slices": "my_slice", "mean": "mean_of_squares"}  # cell: the function it defines
CHECKS = {"slices": check.slices, "mean": check.mean_of_squares}


def defined(source, name):
    names = {"check": check, "helpers": helpers, "torch": torch, "dist": dist}
    exec(source, names)
    return names[name]


@pytest.mark.parametrize("cell", EXERCISES)
def test_the_folded_solution_is_right(cell, capsys):
    (solution,) = re.findall(r"```python\n(.*?)```", CELLS[f"{cell}-solution"], re.DOTALL)
    assert CHECKS[cell](defined(solution, EXERCISES[cell])) is True
    assert capsys.readouterr().out.startswith("Right. ")


@pytest.mark.parametrize("cell", EXERCISES)
def test_the_first_attempt_is_not_right_yet(cell, capsys):
    defined(CELLS[cell], EXERCISES[cell])  # the cell calls the check
    assert capsys.readouterr().out.startswith("Not yet. ")


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


@pytest.mark.parametrize(
    "mistake, hint",
    [
        (lambda r, w, n: (r * (n // w), (r + 1) * (n // w)), "belong to nobody; the first is sample 1436"),
        (lambda r, w, n: (r * (n // w), n if r == w - 1 else (r + 1) * (n // w)), "179 to 184 samples"),
        (lambda r, w, n: (0, n), "2 owners"),
        (lambda r, w, n: (n * r // w, n * (r + 1) // w - 1), "belong to nobody"),
        (lambda r, w, n: (n * r // w, n * (r + 1) // w + 1), "have numbers 0 to 1436"),
        (lambda r, w, n: None, "returned None"),
        (lambda r, w, n: (n * r / w, n * (r + 1) / w), "not (start, stop)"),
        (lambda r, w: (0, 1), "raised TypeError"),
        (lambda r, w, n: n // 0, "raised ZeroDivisionError"),
        ("not a function", "raised TypeError"),
    ],
)
def test_wrong_slices_get_a_hint(mistake, hint, capsys):
    assert check.slices(mistake) is False
    said = capsys.readouterr().out
    assert said.startswith("Not yet. ") and hint in said


def all_reduced(before, after, op=dist.ReduceOp.SUM, dtype=torch.float32):
    """A function for launch: `before(rank, size)`, then all_reduce, then `after(number, rank, size)`."""

    def answer():
        with helpers.distributed() as world:
            number = torch.tensor(before(world.rank, world.size), dtype=dtype, device=world.device)
            dist.all_reduce(number, op=op)
            return after(number, world.rank, world.size)

    return answer


def wrong_means():
    """(mistake, hint); defined in here, since a rank would have to import this file for functions of its own."""

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
        (all_reduced(square, lambda x, r, n: x), "that is the sum"),
        (without_all_reduce, "still has its own rank²"),
        (all_reduced(lambda r, n: r**2 / n, lambda x, r, n: r**2 / n), "divided its own number"),
        (all_reduced(lambda r, n: r, lambda x, r, n: x / n), "mean of the ranks"),
        (all_reduced(square, lambda x, r, n: x // n, dtype=torch.int64), "the digits after the point are lost"),
        (all_reduced(square, lambda x, r, n: x / n**2), "divided by 2 twice"),
        (all_reduced(square, lambda x, r, n: x / 2), "With 3 ranks, everybody has 2.5"),
        (all_reduced(square, lambda x, r, n: x / n if r == 0 else x), "different numbers"),
        (all_reduced(square, lambda x, r, n: None), "Is there a `return`?"),
        (mean_on_rank_0, "different numbers"),
        (only_rank_0_calls, "rank 0 waited for one that had already returned"),
        (raises_on_rank_1, "rank 1 failed: IndexError: no such image"),
        (lambda argument: argument, "could not be launched"),
        (0.5, "could not be launched"),
    ]


def test_a_tensor_is_right_too():
    assert check.mean_of_squares(all_reduced(lambda r, n: [float(r**2)], lambda x, r, n: x / n)) is True


@pytest.mark.parametrize("mistake, hint", wrong_means())
def test_wrong_means_get_a_hint(mistake, hint, capsys):
    assert check.mean_of_squares(mistake) is False
    said = capsys.readouterr().out
    assert said.startswith("Not yet. ") and hint in said


def test_ranks_that_wait_for_ever_are_stopped(capsys, monkeypatch):
    def waits():
        with helpers.distributed() as world:
            if world.rank == 0:
                dist.recv(torch.zeros(1), src=1)
            else:
                dist.recv(torch.zeros(1), src=0)

    monkeypatch.setattr("helpers.check.start.PATIENCE", 2)
    assert check.mean_of_squares(waits) is False
    assert "stopped after 2 seconds" in capsys.readouterr().out

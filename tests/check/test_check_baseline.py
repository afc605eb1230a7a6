"""The checks of 01_baseline: right answers pass, and each kind of mistake gets a hint of its own."""

import re
import statistics
from pathlib import Path

import nbformat
import pytest
import torch

from helpers import check

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "01_baseline.ipynb"
CELLS = {cell.id: cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells}
EXERCISES = {"median-step": "median_step", "rate": "images_per_second", "accuracy": "accuracy"}


def defined(source, name):
    names = {"check": check}
    exec(source, names)
    return names[name]


@pytest.mark.parametrize("cell, name", EXERCISES.items())
def test_the_folded_solution_is_right(cell, name, capsys):
    (solution,) = re.findall(r"```python\n(.*?)```", CELLS[f"{cell}-solution"], re.DOTALL)
    assert getattr(check, name)(defined(solution, name)) is True
    assert capsys.readouterr().out.startswith("Right. ")


@pytest.mark.parametrize("cell, name", EXERCISES.items())
def test_the_first_attempt_is_not_right_yet(cell, name, capsys):
    defined(CELLS[cell], name)  # the cell calls the check
    assert capsys.readouterr().out.startswith("Not yet. ")


def refused(said, hint):
    return said.startswith("Not yet. ") and hint in said and said.count("\n") == 1


def sorts_in_place(times, warmup):
    kept = times[warmup:]
    times.sort()
    return statistics.median(kept)


def test_a_tensor_of_one_element_is_a_number():
    assert check.median_step(lambda times, warmup: torch.tensor(times[warmup:]).quantile(0.5)) is True


@pytest.mark.parametrize(
    "mistake, hint",
    [
        (lambda t, w: sum(t) / len(t), "mean of all steps"),
        (lambda t, w: statistics.mean(t[w:]), "but this is a mean"),
        (lambda t, w: statistics.median(t), "median of all steps"),
        (lambda t, w: statistics.median_low(t[w:]), "halfway between"),
        (lambda t, w: statistics.median_high(t[w:]), "halfway between"),
        (lambda t, w: t[w:][len(t[w:]) // 2], "in order of time"),
        (lambda t, w: max(t), "take the one in the middle"),
        (sorts_in_place, "changed the list"),
        (lambda t, w: None, "Is there a `return`?"),
        (lambda t, w: "0.12 s", "not a number"),
        (lambda t, w: t[w:][99], "raised IndexError"),
        (None, "raised TypeError"),
    ],
)
def test_wrong_medians_get_a_hint(mistake, hint, capsys):
    assert check.median_step(mistake) is False
    assert refused(capsys.readouterr().out, hint)


@pytest.mark.parametrize(
    "mistake, hint",
    [
        (lambda t, b: statistics.mean(b / s for s in t), "mean of the steps' rates"),
        (lambda t, b: b / statistics.median(t), "typical step"),
        (lambda t, b: len(t) / sum(t), "steps per second"),
        (lambda t, b: b / sum(t), "the images are those of one"),
        (lambda t, b: sum(t) / (b * len(t)), "seconds per image"),
        (lambda t, b: b, "How many images were there in all"),
        (lambda t, b: print, "not a number"),
        (lambda t: 1.0, "raised TypeError"),
    ],
)
def test_wrong_rates_get_a_hint(mistake, hint, capsys):
    assert check.images_per_second(mistake) is False
    assert refused(capsys.readouterr().out, hint)


def sums(batches):
    return [sum(column) for column in zip(*batches, strict=True)]


@pytest.mark.parametrize(
    "mistake, hint",
    [
        (lambda b: statistics.mean(r / n for r, n in b), "mean of the batches' accuracies"),
        (lambda b: 100 * sums(b)[0] / sums(b)[1], "as a percentage"),
        (lambda b: sums(b)[0], "divide them by the number of images"),
        (lambda b: sums(b)[0] // sums(b)[1], "whole-number division"),
        (lambda b: sums(b[:-1])[0] / sums(b[:-1])[1], "right answers among"),  # drops the last batch
        (lambda b: sum(r / n * n for r, n in b) / sums(b)[1], "may be left with an empty batch"),
        (lambda b: None, "Is there a `return`?"),
    ],
)
def test_wrong_accuracies_get_a_hint(mistake, hint, capsys):
    assert check.accuracy(mistake) is False
    assert refused(capsys.readouterr().out, hint)

"""The checks of notebook 02 accept its solutions and object to mistakes, each in words of its own."""

import sys

import cloudpickle
import pytest
import torch
from exercises import assert_verdicts

from helpers import check

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # else every rank imports pytest to find a mistake

EXERCISES = [("scatter", "dp-turn-scatter"), ("reduce_gradients", "dp-turn-reduce")]


@pytest.mark.parametrize("name, cell", EXERCISES)
def test_the_solution_is_right_and_the_first_attempt_is_not(name, cell, capsys):
    assert_verdicts(check, name, "02_data_parallel.ipynb", cell, capsys, torch=torch)


def objections(name, mistakes, capsys):
    """What the check says to each of the mistakes."""
    said = []
    for mistake in mistakes:
        assert getattr(check, name)(mistake) is False, mistake
        said.append(capsys.readouterr().out)
        assert said[-1].startswith("Not yet. ")
    return said


def test_scatter_objects_to(capsys):
    idle, lost, last_takes_all, mixed, loose, other, raises, none = objections("scatter", [
        lambda batch, devices: [piece for piece in batch.tensor_split(devices) if len(piece)],
        lambda batch, devices: [batch[i * (len(batch) // devices):][: len(batch) // devices] for i in range(devices)],
        lambda batch, devices: list(batch.split(
            [len(batch) // devices] * (devices - 1) + [len(batch) - (devices - 1) * (len(batch) // devices)])),
        lambda batch, devices: [batch[i::devices] for i in range(devices)],
        lambda batch, devices: [batch] * devices,
        lambda batch, devices: [piece[:, :1] for piece in batch.tensor_split(devices)],
        lambda batch, devices: 1 / 0,
        lambda batch, devices: None,
    ], capsys)  # fmt: skip
    assert "Every device needs a piece" in idle
    assert "in all" in lost and "in all" in loose
    assert "largest piece" in last_takes_all
    assert "Keep the order" in mixed
    assert "first dimension" in other
    assert "ZeroDivisionError" in raises
    assert "NoneType" in none


def test_reduce_gradients_objects_to(capsys):
    def combined(weights):
        def reduce_gradients(gradients, sizes):
            return [sum(w * g for w, g in zip(weights(sizes), gs, strict=True)) for gs in zip(*gradients, strict=True)]

        return reduce_gradients

    said = objections("reduce_gradients", [
        combined(lambda sizes: [1] * len(sizes)),
        combined(lambda sizes: [1 / len(sizes)] * len(sizes)),
        combined(lambda sizes: sizes),
        combined(lambda sizes: [1 / size for size in sizes]),
        lambda gradients, sizes: [sum(of_one) for of_one in gradients if False],
        lambda gradients, sizes: gradients[0][::-1],
        lambda gradients, sizes: sizes[9],
    ], capsys)  # fmt: skip
    expected = ("sum", "plain mean", "divides", "not the", "list of 2", "shape", "IndexError")
    assert all(words in text for words, text in zip(expected, said, strict=True))
    assert len(set(said)) == len(said)

"""The checks of notebook 02: right answers pass, and each kind of mistake has a hint of its own."""

import torch
from exercises import Checks


def lost(batch, devices):
    size = len(batch) // devices
    return [batch[i * size :][:size] for i in range(devices)]


def last_takes_all(batch, devices):
    size = len(batch) // devices
    return list(batch.split([size] * (devices - 1) + [len(batch) - (devices - 1) * size]))


def combined(weights):
    def reduce_gradients(gradients, sizes):
        return [sum(w * g for w, g in zip(weights(sizes), of, strict=True)) for of in zip(*gradients, strict=True)]

    return reduce_gradients


class TestDataParallel(Checks):
    notebook = "02_data_parallel.ipynb"
    known = dict(torch=torch)
    exercises = {
        "scatter": ("dp-turn-scatter", "scatter"), "reduce_gradients": ("dp-turn-reduce", "reduce_gradients"),
    }  # fmt: skip
    mistakes = {
        "scatter": [
            lambda batch, devices: [piece for piece in batch.tensor_split(devices) if len(piece)], last_takes_all,
            (lost, lambda batch, devices: [batch] * devices),
            lambda batch, devices: [batch[i::devices] for i in range(devices)],
            lambda batch, devices: [piece[:, :1] for piece in batch.tensor_split(devices)],
            lambda batch, devices: 1 / 0, lambda batch, devices: None,
        ],
        "reduce_gradients": [
            combined(lambda sizes: [1] * len(sizes)), combined(lambda sizes: [1 / len(sizes)] * len(sizes)),
            combined(lambda sizes: sizes), combined(lambda sizes: [1 / size for size in sizes]),
            lambda gradients, sizes: [sum(of_one) for of_one in gradients if False],
            lambda gradients, sizes: gradients[0][::-1], lambda gradients, sizes: sizes[9],
        ],
    }  # fmt: skip

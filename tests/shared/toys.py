"""A toy data set that can be learnt, a short text, and a small net for each, all exact in float64."""

import torch
from torch import nn

from helpers.data import grammar
from helpers.data.sets import TokenSet
from helpers.training.gpt import gpt


class ToySet(torch.utils.data.Dataset):
    """Deterministic images whose label can be learnt."""

    classes = tuple("abc")

    def __init__(self, n=192, dtype=torch.float64):
        generator = torch.Generator().manual_seed(1)
        self.images = torch.randn(n, 3, 8, 8, generator=generator, dtype=torch.float64).to(dtype)
        self.labels = (self.images.mean((1, 2, 3)) * 30).long().clamp(-1, 1) + 1

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.images[i], self.labels[i]


def toy_data():
    return ToySet(), ToySet(37)


def smooth_net(norm=lambda c: nn.Identity(), dtype=torch.float64):
    """A small convolutional net; smooth activations keep rounding from being blown up."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        norm(8),
        nn.Tanh(),
        nn.Conv2d(8, 8, 3, stride=2),
        norm(8),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(72, 3),
    ).to(dtype)


def float64_net():
    return smooth_net()


def batch(dtype):
    generator = torch.Generator().manual_seed(2)
    return torch.randn(16, 3, 8, 8, generator=generator, dtype=torch.float64).to(dtype), torch.arange(16) % 3


def toy_text(n=96, length=16):
    """A pair (train, test) of sequences of `length` tokens."""
    pieces = torch.from_numpy(grammar.sequences(n + 37, length, 5))
    return TokenSet("text", pieces[:n], grammar.WORDS), TokenSet("text", pieces[n:], grammar.WORDS)


def float64_gpt():
    return gpt(layers=2, width=16, heads=2, vocabulary=len(grammar.WORDS), length=16).double()

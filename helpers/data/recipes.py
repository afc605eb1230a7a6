"""Which data sets there are, and how each is made.

A maker returns ({split: {kind: array}}, the names of the classes, or the words of a text). The made sets use
whole-number arithmetic and NumPy's RandomState, whose stream is frozen, so the same pictures and texts come out on
every machine.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from . import grammar

SPLITS = ("train", "test")
STYLES = 3  # different pictures that stand for one class of the mock sets


class PrepareError(RuntimeError):
    """A set cannot be prepared; the text says why and what to do."""


@dataclass(frozen=True)
class Recipe:
    """How one set is made; with a new version, the sets on readers' disks are made again."""

    summary: str
    maker: Callable
    images: int  # or sequences, for training
    version: int = 1
    side: int = 32  # of an image, in pixels


def enlarge(grids: np.ndarray, factor: int) -> np.ndarray:
    """Bilinear enlargement of integer grids [..., h, w] to [..., h*factor, w*factor], times (2*factor)**2.

    That factor keeps it whole. As in torch with align_corners=False, pixel centres are at half-integers.
    """

    def weights(size):
        position = np.clip(2 * np.arange(size * factor) + 1 - factor, 0, 2 * factor * (size - 1))
        low, part = np.divmod(position, 2 * factor)
        matrix = np.zeros((size * factor, size), np.int64)
        rows = np.arange(size * factor)
        matrix[rows, low] += 2 * factor - part
        matrix[rows, np.minimum(low + 1, size - 1)] += part
        return matrix

    height, width = grids.shape[-2:]
    return weights(height) @ grids.astype(np.int64) @ weights(width).T


def make_digits() -> tuple:
    """scikit-learn's 1,797 handwritten digits, 8x8, enlarged to 24x24 and framed with four empty pixels a side.

    So a random crop loses no stroke. Source: UCI "Optical Recognition of Handwritten Digits", test part.
    """
    from sklearn.datasets import load_digits

    source = load_digits()
    grey = (enlarge(source.images, 3) * 255 + 16 * 36 // 2) // (16 * 36)
    pictures = np.zeros((len(grey), 3, 32, 32), np.uint8)
    pictures[:, :, 4:28, 4:28] = grey[:, None]
    labels = source.target.astype(np.int64)
    # Evenly spaced picks from the shuffled set sorted by class keep the classes' shares.
    order = np.random.RandomState(0).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    in_test = np.isin(np.arange(len(labels)), order[np.arange(360) * len(labels) // 360])
    chosen = {"train": ~in_test, "test": in_test}
    return {split: {"images": pictures[of], "labels": labels[of]} for split, of in chosen.items()}, list("0123456789")


@lru_cache(maxsize=1)
def canvases(size: int) -> np.ndarray:
    """Smooth coloured patterns int32 [10 * STYLES, 3, 5/4 size, 5/4 size], about -100..100."""
    coarse = np.random.RandomState(10).randint(-100, 101, (10 * STYLES, 3, 5, 5))
    factor = size // 4
    return (enlarge(coarse, factor) // (2 * factor) ** 2).astype(np.int32)


def paint(labels: np.ndarray, size: int, rng: np.random.RandomState) -> np.ndarray:
    """One uint8 picture [3, size, size] a label: a shifted, perhaps mirrored piece of one of its class's patterns.

    Over it lie a piece of any pattern, mostly fainter, and noise.
    """
    n = len(labels)
    windows = np.lib.stride_tricks.sliding_window_view(canvases(size), (size, size), axis=(2, 3))

    def piece(pattern, low, high):
        dy, dx = rng.randint(0, size // 4 + 1, (2, n))
        strength = rng.randint(low, high, n, dtype=np.int32)
        return strength[:, None, None, None] * windows[pattern, :, dy, dx]

    picture = piece(labels * STYLES + rng.randint(0, STYLES, n), 24, 65)
    picture += piece(rng.randint(0, 10 * STYLES, n), 0, 49)
    picture //= 64
    mirrored = rng.randint(0, 2, n) == 1
    picture[mirrored] = picture[mirrored, :, :, ::-1]
    noise = np.frombuffer(rng.bytes(picture.size), np.int8).reshape(picture.shape)
    picture += noise // 4
    picture += 128
    return np.clip(picture, 0, 255).astype(np.uint8)


def make_mock(images=50_000, tests=10_000, size=32, seed=1) -> tuple:
    """Painted pictures of ten classes, every class equally often, to within one."""
    rng, splits = np.random.RandomState(seed), {}
    chunk = 1000 if size == 32 else 20
    for split, n in (("train", images), ("test", tests)):
        labels = rng.permutation(np.arange(n) % 10)
        pictures = [paint(labels[start : start + chunk], size, rng) for start in range(0, n, chunk)]
        splits[split] = {"images": np.concatenate(pictures), "labels": labels}
    return splits, [f"pattern_{i}" for i in range(10)]


def make_tokens(train=8192, test=1024, length=64) -> tuple:
    """Pieces of a made-up text, uint8 [n, length + 1], each token a word; see `grammar`."""
    pieces = {"train": grammar.sequences(train, length, 3), "test": grammar.sequences(test, length, 4)}
    return {split: {"tokens": tokens} for split, tokens in pieces.items()}, list(grammar.WORDS)


def make_cifar10() -> tuple:
    """The 60,000 pictures of https://www.cs.toronto.edu/~kriz/cifar.html (170 MB), downloaded by torchvision.

    torchvision compares the archive, and every file in it, with their MD5 sums before it reads them.
    """
    from torchvision.datasets import CIFAR10

    with tempfile.TemporaryDirectory() as folder:
        try:
            parts = {split: CIFAR10(folder, train=split == "train", download=True) for split in SPLITS}
        except Exception as error:
            raise PrepareError(
                f"cifar10 cannot be downloaded from {CIFAR10.url} ({error}): check the network, or prepare the set on "
                "a machine that has one and copy its folder to this one"
            ) from error
    arrays = lambda part: {"images": part.data.transpose(0, 3, 1, 2), "labels": np.array(part.targets)}  # noqa: E731
    return {split: arrays(part) for split, part in parts.items()}, parts["train"].classes


RECIPES = {
    "digits": Recipe("1,797 real handwritten digits as 3x32x32 images, from scikit-learn", make_digits, 1437),
    "mock": Recipe("made-up, learnable images as large as CIFAR-10's", make_mock, 50_000, version=2),
    "imagenet-mock": Recipe("made-up 224x224 images", partial(make_mock, 640, 160, 224, 2), 640, version=2, side=224),
    "cifar10": Recipe("the real CIFAR-10, downloaded (170 MB) and checked", make_cifar10, 50_000, version=2),
    "tokens": Recipe("made-up sentences as tokens, for gpt", make_tokens, 8192),
}

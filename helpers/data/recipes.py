"""Which data sets there are, and how each is made.

A maker is called as `make(store, images)`. It hands images and labels to `store.save(split, pieces, labels)` and
returns what a reader needs to know: `classes`, and the `mean` and `std` of the training images in [0, 1] units, one
number a channel; of text the words are the classes. The made sets use whole-number arithmetic and NumPy's
RandomState, whose stream is frozen, so the same pictures and texts come out on every machine.
"""

import contextlib
import http.client
import io
import os
import shutil
import socket
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from . import grammar
from .store import PrepareError

FEWEST_IMAGES = 10  # one a class
STYLES = 3  # different pictures that stand for one class of the mock sets
URL_VARIABLE = "HELPERS_CIFAR10_URL"
TIMEOUT = 30  # seconds without a byte before the server is given up
SEQUENCES = {"train": 8192, "test": 1024}  # of the set tokens
LENGTH = 64  # tokens in each


@dataclass(frozen=True)
class Recipe:
    """How one set is made; with a new version, the sets on readers' disks are made again."""

    summary: str
    maker: Callable
    needs: tuple[str, ...] = ()  # modules the maker imports
    images: int | None = None  # default number of training images; None: the size is fixed
    most: int = 0
    version: int = 1
    side: int = 32  # of an image, in pixels
    of: str = "images"


def check_request(name: str, images: int | None = None) -> Recipe:
    """The recipe of a set; ValueError for an unknown set or a number it cannot have."""
    recipe = RECIPES.get(name)
    if recipe is None:
        raise ValueError(f"there is no data set {name!r}; the sets are {', '.join(RECIPES)}")
    if images is not None and recipe.images is None:
        sized = ", ".join(n for n, r in RECIPES.items() if r.images)
        raise ValueError(f"{name} has a fixed size; a number of images can be chosen for {sized}")
    if images is not None and not (isinstance(images, int) and FEWEST_IMAGES <= images <= recipe.most):
        raise ValueError(
            f"the number of training images of {name} must be from {FEWEST_IMAGES} to {recipe.most:,}; got {images}"
        )
    return recipe


def wanted(name: str, images: int | None = None) -> dict:
    """What a set's manifest must say about its making (default size when `images` is None)."""
    recipe = check_request(name, images)
    return {"set": name, "version": recipe.version, "images": images or recipe.images}


# -- digits -------------------------------------------------------------------------------


def count(counts, images) -> None:
    """Add how often each value occurs in uint8 images [n, 3, H, W] to counts [3, 256]."""
    for channel in range(3):
        counts[channel] += np.bincount(images[:, channel].ravel(), minlength=256)


def statistics(counts) -> dict:
    """{"mean": 3 floats, "std": 3 floats} in [0, 1] units, exact since it counts values."""
    values, share = np.arange(256) / 255, counts / counts.sum(axis=1, keepdims=True)
    mean = share @ values
    return {"mean": mean.tolist(), "std": np.sqrt(np.maximum(share @ values**2 - mean**2, 0)).tolist()}


def enlarge(grids: np.ndarray, factor: int) -> np.ndarray:
    """Bilinear enlargement of integer grids [..., h, w] to [..., h*factor, w*factor].

    The result is (2*factor)**2 times too large, which keeps it whole. Pixel centres are at
    half-integers and the border is extended, as in PIL and torch with align_corners=False.
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


def make_digits(store, images=None) -> dict:
    """scikit-learn's 1,797 handwritten digits, 8x8, brought to 3x32x32.

    Enlarged three times and framed with four empty pixels, so that a random crop with a
    padding of four loses no stroke. Source: sklearn.datasets.load_digits (UCI "Optical
    Recognition of Handwritten Digits", test part).
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
    in_test = np.zeros(len(labels), bool)
    in_test[order[np.arange(360) * len(labels) // 360]] = True

    train = pictures[~in_test]
    store.save("train", [train], labels[~in_test])
    store.save("test", [pictures[in_test]], labels[in_test])
    counts = np.zeros((3, 256), np.int64)
    count(counts, train)
    return {"classes": [str(i) for i in range(10)], **statistics(counts)}


# -- made-up pictures --------------------------------------------------------------------


@lru_cache(maxsize=1)
def canvases(size: int) -> np.ndarray:
    """Smooth coloured patterns int32 [10 * STYLES, 3, 5/4 size, 5/4 size], about -100..100."""
    coarse = np.random.RandomState(10).randint(-100, 101, (10 * STYLES, 3, 5, 5))
    factor = size // 4
    return (enlarge(coarse, factor) // (2 * factor) ** 2).astype(np.int32)


def paint(labels: np.ndarray, size: int, rng: np.random.RandomState) -> np.ndarray:
    """Draw one uint8 picture [3, size, size] a label: learnable, but not at a glance.

    Each shows a shifted, perhaps mirrored piece of one of its class's patterns, with a
    fainter (now and then stronger) piece of any other pattern over it, and noise.
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


def make_mock(store, images: int, size=32, seed=1, tests=None) -> dict:
    """`images` training and a fifth as many test pictures, or `tests`, in ten classes."""
    rng = np.random.RandomState(seed)
    counts = np.zeros((3, 256), np.int64)
    chunk = 1000 if size == 32 else 20
    for split, n in (("train", images), ("test", images // 5 if tests is None else tests)):
        labels = rng.permutation(np.arange(n) % 10)  # every class equally often, to within one

        def pieces(split=split, n=n, labels=labels):
            for start in range(0, n, chunk):
                piece = paint(labels[start : start + chunk], size, rng)
                if split == "train":
                    count(counts, piece)
                store.progress(start + len(piece), n)
                yield piece

        store.save(split, pieces(), labels)
    return {"classes": [f"pattern_{i}" for i in range(10)], **statistics(counts)}


def make_imagenet_mock(store, images: int) -> dict:
    """The same of 224x224 pixels, with a quarter as many test pictures."""
    return make_mock(store, images, 224, 2, max(10, images // 4))


# -- text -----------------------------------------------------------------------------------


def make_tokens(store, images=None) -> dict:
    """Pieces of a made-up text, each token a word; see `grammar`."""
    for seed, (split, count) in enumerate(SEQUENCES.items(), 3):
        store.save_tokens(split, grammar.sequences(count, LENGTH, seed))
    return {"classes": list(grammar.WORDS), "length": LENGTH}


# -- CIFAR-10 -----------------------------------------------------------------------------


def make_cifar10(store, images=None) -> dict:
    """The 60,000 pictures of https://www.cs.toronto.edu/~kriz/cifar.html (170 MB), downloaded by torchvision.

    torchvision compares the archive, and every file in it, with their MD5 sums before it reads them.
    """
    from torchvision.datasets import CIFAR10
    from torchvision.datasets.utils import check_integrity

    class Source(CIFAR10):
        url = os.environ.get(URL_VARIABLE) or CIFAR10.url

    folder, timeout = store.folder / "download", socket.getdefaulttimeout()
    # torchvision's progress bar is for a terminal only.
    out = contextlib.nullcontext() if sys.stderr.isatty() else contextlib.redirect_stderr(io.StringIO())
    socket.setdefaulttimeout(TIMEOUT)
    try:
        with out:
            if Source.url.startswith("file:"):  # which torchvision cannot fetch, but it takes an archive that is there
                folder.mkdir()
                with urllib.request.urlopen(Source.url) as source, open(folder / Source.filename, "wb") as copy:
                    shutil.copyfileobj(source, copy)
                if not check_integrity(folder / Source.filename, Source.tgz_md5):
                    raise ValueError("the archive is truncated or damaged")
            train, test = Source(folder, download=True), Source(folder, train=False)
    except (
        urllib.error.URLError,
        http.client.HTTPException,
        tarfile.TarError,
        ConnectionError,
        EOFError,
        RuntimeError,
        TimeoutError,
        ValueError,
    ) as error:
        raise PrepareError(
            f"cifar10 cannot be downloaded from {Source.url} ({getattr(error, 'reason', error)}): check "
            f"the network, or set {URL_VARIABLE} to a mirror (http://, https:// or "
            "file:///path/to/cifar-10-python.tar.gz)"
        ) from error
    finally:
        socket.setdefaulttimeout(timeout)
    shutil.rmtree(folder)
    for split, part in (("train", train), ("test", test)):
        store.save(split, [np.ascontiguousarray(part.data.transpose(0, 3, 1, 2))], np.array(part.targets))
    counts = np.zeros((3, 256), np.int64)
    count(counts, train.data.transpose(0, 3, 1, 2))
    return {"classes": train.classes, **statistics(counts)}


RECIPES = {
    "digits": Recipe(
        "1,797 real handwritten digits as 3x32x32 images, from scikit-learn; no network", make_digits, ("sklearn",)
    ),
    "mock": Recipe(
        "made-up, learnable images as large as CIFAR-10's; 50,000 for training",
        make_mock,
        images=50_000,
        most=1_000_000,
        version=2,
    ),
    "imagenet-mock": Recipe(
        "made-up 224x224 images; 640 for training", make_imagenet_mock, images=640, most=100_000, version=2, side=224
    ),
    "cifar10": Recipe("the real CIFAR-10, downloaded (170 MB) and checked", make_cifar10, ("torchvision",), version=2),
    "tokens": Recipe(
        f"made-up sentences as tokens, for gpt; {SEQUENCES['train']:,} sequences of {LENGTH} for training; no network",
        make_tokens,
        of="sequences",
    ),
}

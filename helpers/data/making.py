"""How each data set is made: one function a set.

Every maker is called as `make(out, images)`. It hands finished files to `out.write(path,
content)`, tells how far it is with `out.progress(done, total)`, and returns what a reader
needs to know about the set: `classes`, the numbers of `train` and `test` images, and the
`mean` and `std` of the training images in [0, 1] units, one number a channel.

The made sets use whole-number arithmetic and NumPy's RandomState, whose stream is frozen,
so the same pictures come out on every machine.
"""

import io
import pickle
from functools import lru_cache

import numpy as np

CIFAR_FOLDER = "cifar-10-batches-py"
CIFAR_BATCHES = {
    "train": tuple(f"{CIFAR_FOLDER}/data_batch_{i}" for i in range(1, 6)),
    "test": (f"{CIFAR_FOLDER}/test_batch",),
}
CIFAR_META = f"{CIFAR_FOLDER}/batches.meta"
MOCK_CLASSES = tuple(f"pattern_{i}" for i in range(10))
STYLES = 3  # different pictures that stand for one class


class ChannelStatistics:
    """Mean and standard deviation a channel, exact because it only counts pixel values."""

    def __init__(self):
        self.counts = np.zeros((3, 256), np.int64)

    def add(self, images: np.ndarray) -> None:
        """Count uint8 images [n, 3, H, W]."""
        for channel in range(3):
            self.counts[channel] += np.bincount(images[:, channel].ravel(), minlength=256)

    def result(self) -> dict:
        """{"mean": 3 floats, "std": 3 floats}, in [0, 1] units."""
        values = np.arange(256) / 255
        share = self.counts / self.counts.sum(axis=1, keepdims=True)
        mean = share @ values
        std = np.sqrt(np.maximum(share @ values**2 - mean**2, 0))
        return {"mean": mean.tolist(), "std": std.tolist()}


def npy_bytes(array: np.ndarray) -> bytes:
    """The array as the content of a .npy file."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


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


def make_digits(out, images=None) -> dict:
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

    for split, chosen in (("train", ~in_test), ("test", in_test)):
        out.write(f"{split}_images.npy", npy_bytes(pictures[chosen]))
        out.write(f"{split}_labels.npy", npy_bytes(labels[chosen]))
    statistics = ChannelStatistics()
    statistics.add(pictures[~in_test])
    return {"classes": [str(i) for i in range(10)], "train": int((~in_test).sum()),
            "test": int(in_test.sum()), **statistics.result()}


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


def balanced_labels(n: int, rng: np.random.RandomState) -> np.ndarray:
    """n labels 0..9, every class equally often (to within one), in random order."""
    return rng.permutation(np.arange(n) % 10)


def make_mock(out, images: int) -> dict:
    """`images` training and a fifth as many test pictures in CIFAR-10's own files.

    Format: https://www.cs.toronto.edu/~kriz/cifar.html (five pickled training batches, a
    test batch and batches.meta; rows of 3,072 bytes, red, green, blue planes).
    """
    rng = np.random.RandomState(1)
    statistics = ChannelStatistics()
    batches = [("train", name) for name in CIFAR_BATCHES["train"]]
    batches += [("test", name) for name in CIFAR_BATCHES["test"]]
    sizes = [len(part) for part in np.array_split(np.arange(images), 5)] + [images // 5]
    for done, ((split, name), n) in enumerate(zip(batches, sizes, strict=True)):
        labels = balanced_labels(n, rng)
        pictures = np.concatenate(
            [paint(part, 32, rng) for part in np.array_split(labels, n // 1000 + 1)]
        )
        if split == "train":
            statistics.add(pictures)
        file_name = name.rpartition("/")[2]
        out.write(name, pickle.dumps({
            "batch_label": file_name,
            "labels": labels.tolist(),
            "data": pictures.reshape(n, 3072),
            "filenames": [f"{file_name}_{i}.png" for i in range(n)],
        }, protocol=4))
        out.progress(done + 1, len(batches))
    out.write(CIFAR_META, pickle.dumps({
        "label_names": list(MOCK_CLASSES),
        "num_cases_per_batch": sizes[0],
        "num_vis": 3072,
    }, protocol=4))
    return {"classes": list(MOCK_CLASSES), "train": images, "test": images // 5,
            **statistics.result()}


def make_imagenet_mock(out, images: int) -> dict:
    """`images` training and a quarter as many validation JPEGs of 224x224, ImageFolder layout."""
    from PIL import Image

    rng = np.random.RandomState(2)
    statistics = ChannelStatistics()
    counts = {"train": images, "val": max(10, images // 4)}
    total = sum(counts.values())
    for split, n in counts.items():
        before = total - n if split == "val" else 0
        for i in range(n):
            label = i % 10
            picture = paint(np.array([label]), 224, rng)[0].transpose(1, 2, 0)
            file = io.BytesIO()
            Image.fromarray(picture).save(file, format="JPEG", quality=90)
            out.write(f"{split}/{MOCK_CLASSES[label]}/{i:06d}.JPEG", file.getvalue())
            if split == "train":
                # JPEG changes colours a little: count what a reader will see.
                statistics.add(np.asarray(Image.open(file)).transpose(2, 0, 1)[None])
            out.progress(before + i + 1, total)
    return {"classes": list(MOCK_CLASSES), "train": counts["train"], "test": counts["val"],
            **statistics.result()}

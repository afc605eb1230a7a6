"""Prepared data sets, mapped into memory from their files, and a reader's own."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import IterableDataset

from ..language import N_
from ..paths import data_root, project_root
from .prepare import MANIFEST, prepare, trouble
from .recipes import RECIPES, SPLITS


class DataMissing(FileNotFoundError):
    """A set is absent or damaged; the text holds the command that makes it."""


@dataclass(frozen=True)
class ImageSet:
    """One split of a data set."""

    name: str
    images: torch.Tensor  # uint8 [N, 3, H, W]
    labels: torch.Tensor  # int64 [N]
    classes: tuple[str, ...]
    mean: tuple[float, float, float]  # of the training split, in [0, 1] units
    std: tuple[float, float, float]
    flip: bool  # whether a horizontally flipped image keeps its label
    of = "images"  # what its samples are called, in records and figures

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class TokenSet:
    """One split of a text: a map-style data set of pairs (tokens [length], the tokens that follow each)."""

    name: str
    tokens: torch.Tensor  # uint8 [N, length + 1]
    classes: tuple[str, ...]  # the vocabulary
    of = "sequences"

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, which) -> tuple:
        """The pair number `which`, or of a slice the pair of [n, length] each; int64."""
        tokens = self.tokens[which].long()
        return tokens[..., :-1], tokens[..., 1:]

    @property
    def length(self) -> int:
        """Tokens in a sequence."""
        return self.tokens.shape[1] - 1

    def text(self, which) -> str:
        """Sequence number `which` in words."""
        return " ".join(self.classes[token] for token in self.tokens[which].tolist())


def ensure(name: str, root=None) -> None:
    """Prepare a set unless it is there, also in several processes at once; DataMissing for cifar10, a download."""
    root = Path(root or data_root())
    if (wrong := trouble(name, root)) and name == "cifar10":
        raise missing(name, root, wrong)
    if wrong:  # digits and tokens are made in seconds
        prepare(name, root, say=(lambda text: None) if name in ("digits", "tokens") else print)


def missing(name: str, root: Path, reason: str) -> DataMissing:
    """The error to raise for a set that cannot be read, with the command that makes it."""
    script = project_root() / "data" / "prepare.sh"
    words = ["sh", str(script)] if script.is_file() else ["python", "-m", "helpers.data.prepare"]
    words += [name] if root == data_root() else [name, "--root", str(root)]
    return DataMissing(f"the data set {name} in {root / name} {reason}. To make it, type\n    {shlex.join(words)}")


def load(name: str, split: str, root=None) -> ImageSet | TokenSet:
    """The "train" or "test" split of a prepared set, mapped into memory: ranks on one machine share it.

    Raises ValueError for an unknown set or split, DataMissing for a set that is absent or damaged.
    """
    if split not in SPLITS:
        raise ValueError(f"there is no split {split!r}; the splits are {', '.join(SPLITS)}")
    root = Path(root or data_root())
    if wrong := trouble(name, root):
        raise missing(name, root, wrong)
    about = json.loads((root / name / MANIFEST).read_bytes())["about"]
    kinds = ("tokens",) if "length" in about else ("images", "labels")
    try:
        paths = [root / name / f"{split}_{kind}.npy" for kind in kinds]
        parts = [torch.from_numpy(np.load(path, mmap_mode="c")) for path in paths]
    except (OSError, ValueError, EOFError) as error:
        raise missing(name, root, f"is damaged ({error}); remove it") from error
    if kinds == ("tokens",):
        return TokenSet(name, *parts, tuple(about["classes"]))
    return ImageSet(name, *parts, *(tuple(about[key]) for key in ("classes", "mean", "std")), flip=name != "digits")


def pair(data):
    """(train, test) of a RunConfig's `data`: a name, a pair, or a function that returns one; test may be None.

    Raises TypeError for anything else, DataMissing for a named set that is not prepared.
    """
    if isinstance(data, str):
        return load(data, "train"), load(data, "test")
    made = data() if callable(data) else data
    if not isinstance(made, (tuple, list)) or len(made) != 2:
        raise TypeError(f"data must give a pair (train, test) of data sets; got {type(made).__name__}")
    for part in made:
        indexed = hasattr(part, "__getitem__") and hasattr(part, "__len__") and not isinstance(part, IterableDataset)
        if not (indexed or part is None or isinstance(part, ImageSet)):
            raise TypeError(f"a data set must have __len__ and __getitem__ (map style); {type(part).__name__} has not")
    return made


def training_samples(data):
    """How many samples a RunConfig's `data` has to train on; None if only the ranks will know."""
    if isinstance(data, str):
        return RECIPES[data].images
    return None if callable(data) else len(data[0])


def samples_are(train_set) -> str:
    """What to call the samples: what the set itself says (`of`), else "sequences" if it has their `length`."""
    return getattr(train_set, "of", None) or (N_("sequences") if hasattr(train_set, "length") else N_("images"))


def classes(train_set):
    """How many classes `train_set` says it has, or None."""
    return len(train_set.classes) if getattr(train_set, "classes", None) is not None else None

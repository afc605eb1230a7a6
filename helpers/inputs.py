"""The data sets a run asks for: the kit's by name, or the reader's own."""

from . import datasets
from .data import check_data


def pair(data):
    """(train, test) of a RunConfig's `data`: a name, a pair, or a function that returns a pair.

    The test set may be None; the run then has no accuracy. Raises TypeError for anything else,
    DataMissing for a named set that is not prepared.
    """
    if isinstance(data, str):
        return datasets.load(data, "train"), datasets.load(data, "test")
    made = data() if callable(data) else data
    if not isinstance(made, (tuple, list)) or len(made) != 2:
        raise TypeError(f"data must give a pair (train, test) of data sets; got {type(made).__name__}")
    for part in made:
        if part is not None:
            check_data(part)
    return made


def training_samples(data):
    """How many samples a RunConfig's `data` has to train on; None if only the ranks will know."""
    if isinstance(data, str):
        return datasets.training_images(data)
    return None if callable(data) else len(data[0])


def classes(train_set):
    """How many classes `train_set` says it has, or None."""
    names = getattr(train_set, "classes", None)
    return None if names is None else len(names)

"""Why a choice cannot be run, found before anything starts, and what to change about it."""

import math
import os
import shutil
import sys
from dataclasses import dataclass
from functools import lru_cache

from ... import device, measure
from ...compiler import trials
from ...config import SETTINGS, ConfigError
from ...data import sets
from ...data.recipes import RECIPES, SEQUENCES
from ...launcher.language import local, marked
from ...paths import data_root
from ...training import compiled, models
from ..ladder import is_factor
from ..run import other_environment

UNITS = ("epochs", "steps")
NAMES_HERE = {"nproc_per_node": "ranks", "global_batch": "batch", "epochs": "length", "steps": "length"}
NOUNS = {
    "ranks": marked("ranks"),
    "batch": "global batch",
    "length": marked("length"),
    "prediction": marked("expected factor"),
}
FIXED = {"digits": 1437, "cifar10": 50_000, "tokens": SEQUENCES["train"]}  # for training, of a fixed size
PLANS = 4  # that compiler "auto" tries: eager and inductor, each in two memory layouts


@dataclass(frozen=True)
class Refusal:
    """Why a choice is impossible.

    Attributes:
        settings: the fields of the Choice of which at least one has to change.
        reason: what is wrong, and what would be right.
    """

    settings: tuple
    reason: str

    @property
    def change(self) -> str:
        """What to change, such as "change the global batch or the ranks"."""
        return "change the " + " or the ".join(map(noun, self.settings))

    def local(self) -> tuple:
        """(change, reason) in the reader's language."""
        nouns = local(" or the ").join(local(noun(name)) for name in self.settings)
        return local("change the {nouns}", nouns=nouns), local(self.reason)

    def __str__(self):
        return f"{self.change}: {self.reason}"


def noun(name) -> str:
    """What the form calls a field of a Choice, or another setting."""
    return NOUNS.get(name) or SETTINGS[name].noun


def check(choice) -> Refusal | None:
    """The first thing that is wrong with a Choice, or None; the checks are in the order in which they build on others.

    What RunConfig and the machine say of it is said in their words; the rest would otherwise be known only from a
    run that has failed, or has nothing to show.
    """
    try:
        here = device.machine(choice.device)
    except ValueError as error:
        return Refusal(("device",), str(error))
    if refused := _own_fields(choice):
        return refused
    try:
        configs = choice.configs()
        if configs[0] == configs[1]:
            return Refusal(
                ("ranks", "precision", "compiler"),
                marked("this is the baseline itself (one device, fp32, no compiler), so there is nothing to compare"),
            )
        if choice.ranks > here.count:
            return Refusal(("ranks",), f"ranks is {choice.ranks}; this machine has {here.count} {here.kind} devices")
        for config in configs:
            config.check_machine()
            if config.compiler == "xla":
                other_environment("xla").python()
    except FileNotFoundError as error:
        return Refusal(("compiler",), str(error))
    except ConfigError as error:
        return Refusal(tuple(dict.fromkeys(NAMES_HERE.get(name, name) for name in error.fields)), str(error))
    except ValueError as error:
        return Refusal(("ranks", "batch", "length"), str(error))
    return _devices(choice, here) or _training(configs[1])


def _own_fields(choice):
    """What RunConfig does not check, or would take as the reader's own model or set."""
    factor = choice.prediction
    if factor is not None and not is_factor(factor):
        return Refusal(("prediction",), f"{factor!r} is no factor; write one such as 1.8, or leave the field empty")
    for field in ("model", "data"):
        if not isinstance(value := getattr(choice, field), str):
            return Refusal((field,), f"{field} is {value!r}; the form offers {', '.join(SETTINGS[field].choices)}")
    if choice.unit not in UNITS:
        return Refusal(("length",), f"the unit is {choice.unit!r}; it can be {' or '.join(UNITS)}")
    for field, what in (("length", f"number of {choice.unit}"), ("batch", "global batch")):
        if getattr(choice, field) is None:
            return Refusal((field,), f"there is no {what}; give a whole number, 1 or more")
    return None


def _devices(choice, here):
    if choice.compiler == "xla" and here.kind != "cpu":
        return Refusal(
            ("compiler",),
            f"XLA runs on the CPU here and the baseline on {here.kind}, so that two devices would be compared; choose "
            "another compiler, or compare on the CPU with helpers.form(device='cpu')",
        )
    cxx = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")  # what inductor calls
    if choice.compiler == "inductor" and here.kind == "cpu" and not shutil.which(cxx.split()[0]):
        return Refusal(
            ("compiler",),
            f"inductor writes C++ for a CPU, and there is no {cxx} to compile it; install one, or name yours in CXX",
        )
    return None


def _training(config):
    """What the data, the model and the length have to do with each other."""
    root = data_root()
    absent = sets.trouble(config.data, root)
    if absent and config.data == "cifar10":  # the one set that is not made by itself
        return Refusal(("data",), str(sets.missing(config.data, root, absent)))
    samples = _samples(config.data)
    if samples < config.global_batch:
        return Refusal(
            ("batch", "data"),
            f"a global batch of {config.global_batch} does not fit a training set of {samples:,} samples",
        )
    if config.data == "tokens":
        return _length(config, steps_of(config))
    side = RECIPES[config.data].side
    if problem := _trial(config.model, side, 2):
        reason = f"{config.model} cannot be trained on images of {side}×{side}, which {config.data} has: {problem}"
        return Refusal(("model", "data"), reason)
    if config.local_batch == 1 and (problem := _trial(config.model, side, 1)):
        reason = f"{config.model} cannot be trained with one image of {side}×{side} on a device: {problem}"
        return Refusal(("batch", "ranks", "model"), reason)
    return _length(config, steps_of(config))


def _length(config, steps):
    """Whether there will be steps enough to be timed."""
    least, racing = _least_steps(config), config.compiler == "auto"
    if steps >= least:
        return None
    why = f"{config.warmup_steps} steps to warm up and {measure.AT_LEAST} to be timed"
    enough, fields = f"{least} steps", ("length",)
    if config.epochs:
        enough, fields = f"{math.ceil(config.epochs * least / steps)} epochs", ("length", "batch")
    why = f"{why}, when compiler auto has tried its plans" if racing else why
    return Refusal(
        (*fields, "compiler") if racing else fields,
        f"this makes {steps} steps of training, and a speed-up takes {least}: {why}; {enough} would do",
    )


def steps_of(config) -> int:
    """Updates of the weights in a run on one of the kit's sets, prepared or not."""
    return config.steps or config.epochs * (_samples(config.data) // config.global_batch)


def _samples(name):
    """Training images of a set, or what it will have when it is made."""
    if sets.trouble(name, data_root()) is None:
        return sets.training_images(name)
    return RECIPES[name].images or FIXED[name]


def _least_steps(config):
    """Steps before there are enough timed ones, at most."""
    trying = 0
    if config.compiler == "auto":  # two stages of the race, the second with eager and the finalists, and a choice
        rounds = compiled.ROUNDS
        trying = PLANS * (rounds + 1) + (1 + trials.FINALISTS) * 2 * rounds + 1
    return trying + config.warmup_steps + measure.AT_LEAST


@lru_cache
def _trial(model, side, batch):
    """Why `batch` images of `side`×`side` pixels cannot be trained on, by a forward pass that only works out shapes."""
    import torch

    try:
        with torch.device("meta"):
            models.build(model, classes=10)(torch.empty(batch, 3, side, side))
    except (RuntimeError, ValueError) as error:
        return str(error).splitlines()[0]
    return ""

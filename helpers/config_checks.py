"""What a RunConfig must be: each wrong value gets an error that says what is allowed."""

import difflib

from . import device, xla
from .training import schedules
from .training.levels import ALIASES

STRATEGIES = ("baseline", "data_parallel", "ddp")
PRECISIONS = ALIASES  # every name that is understood -> the one that stands in records
COMPILERS = {"none": "", "auto": "compiler auto", "inductor": "inductor", "xla": "XLA"}  # and how labels call them
INPUT_PATHS = ("fast", "workers")
NAMES = {"baseline": "baseline", "data_parallel": "DataParallel", "ddp": "DDP"}  # in labels


def choices(config) -> None:
    """Names must be known, and what is not a name must be of use."""
    from .data import sets
    from .training import models  # they import torch, which reading records needs not

    for name, allowed in (
        ("strategy", STRATEGIES),
        ("precision", tuple(PRECISIONS)),
        ("compiler", tuple(COMPILERS)),
        ("input_path", INPUT_PATHS),
        ("lr_scaling", tuple(schedules.SCALING)),
        ("schedule", schedules.SCHEDULES),
        ("device", (None, *device.KINDS)),
    ):
        value = getattr(config, name)
        if value not in allowed:
            listed = ", ".join(map(repr, allowed))
            raise ValueError(f"{name} is {value!r}; allowed: {listed}{_did_you_mean(value, allowed)}")
    for name, names in (("model", models.NAMES), ("data", sets.NAMES)):
        value = getattr(config, name)
        if isinstance(value, str) and value not in names:
            listed = ", ".join(map(repr, names))
            own = "a function that makes yours" if name == "model" else "a pair (train, test) of datasets"
            raise ValueError(f"{name} is {value!r}; allowed: {listed}, or {own}{_did_you_mean(value, names)}")
    if not isinstance(config.model, str) and not callable(config.model):
        made = type(config.model).__name__
        raise TypeError(f"model is a {made}; pass a function that makes it, so that each rank can")
    if config.loss is not None and not callable(config.loss):
        raise TypeError(f"loss is {config.loss!r}; pass a function (outputs, labels) -> mean loss, or None")
    if not isinstance(config.data, str) and not callable(config.data):
        _check_pair(config.data)
    for name in ("channels_last", "sync_batch_norm", "augment", "evaluate", "resume"):
        if not isinstance(getattr(config, name), bool):
            raise TypeError(f"{name} is {getattr(config, name)!r}; it must be True or False")


def numbers(config) -> None:
    """Counts must be whole, and every number in its range."""
    for name, least in (
        ("nproc_per_node", 1), ("nnodes", 1), ("global_batch", 1), ("local_batch", 1), ("epochs", 1), ("steps", 1),
        ("threads", 1), ("num_workers", 0), ("warmup_steps", 0), ("checkpoint_every", 1), ("seed", 0),
        ("accumulation", 1), ("base_batch", 1), ("evaluate_every", 1),
    ):  # fmt: skip
        value = getattr(config, name)
        if value is None and _optional(config, name):
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} is {value!r}; it must be a whole number, {least} or more")
        if value < least:
            raise ValueError(f"{name} is {value}; it must be {least} or more")
    for name in ("lr", "momentum", "weight_decay", "lr_warmup_epochs", "clip_norm"):
        value = getattr(config, name)
        if value is None and _optional(config, name):
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} is {value!r}; it must be a number")
        positive = name in ("lr", "clip_norm")
        if not 0 <= value < float("inf") or (positive and value == 0):
            least = "above 0" if positive else "0 or more"
            raise ValueError(f"{name} is {value}; it must be {least} and finite")


def completed(config) -> dict:
    """The values that follow from those given: batch sizes, length, the precision's own name, the label.

    Raises:
        ValueError: the global batch is not local_batch × nproc_per_node × nnodes × accumulation, or cannot be.
    """
    parts = config.devices * config.accumulation
    product = f"nproc_per_node {config.nproc_per_node}"
    if config.nnodes > 1:
        product += f" × nnodes {config.nnodes}"
    if config.accumulation > 1:
        product += f" × accumulation {config.accumulation}"
    whole, local = config.global_batch, config.local_batch
    if local is not None and whole is not None and whole != local * parts:
        raise ValueError(
            f"global_batch {whole} is not local_batch {local} × {product} = {local * parts}; give only one of the two"
        )
    whole = whole or (local * parts if local else 64)
    if whole % parts:
        below = whole - whole % parts
        near = " or ".join(str(n) for n in (below, below + parts) if n)
        raise ValueError(
            f"global_batch {whole} cannot be split evenly over {product}: it is the local batch times these. "
            f"The nearest that can: {near}"
        )
    level = PRECISIONS[config.precision]
    neither = config.epochs is None and config.steps is None
    return {
        "global_batch": whole, "local_batch": whole // parts, "precision": level,
        "epochs": 1 if neither else config.epochs, "label": config.label or _label(config, level),
    }  # fmt: skip


def _label(config, level):
    name = NAMES[config.strategy]
    parts = [name if config.strategy == "baseline" else f"{name} ×{config.devices}"]
    parts += [f"{config.nnodes} hosts"] * (config.nnodes > 1)
    parts += [COMPILERS[config.compiler]] * (config.compiler != "none")
    parts += [level] * (level != "fp32") + ["channels last"] * config.channels_last
    parts += [f"{config.accumulation} micro-batches"] * (config.accumulation > 1)
    return " · ".join(parts)


def together(config) -> None:
    """Options that are sound one by one must also go together."""
    if config.strategy == "baseline" and config.nproc_per_node != 1:
        raise ValueError(
            f"strategy 'baseline' uses one device, nproc_per_node is {config.nproc_per_node}; "
            "for more devices choose 'ddp' (or 'data_parallel')"
        )
    if config.nnodes > 1 and config.strategy != "ddp":
        raise ValueError(f"strategy {config.strategy!r} stays on one host, nnodes is {config.nnodes}; choose 'ddp'")
    if config.epochs is not None and config.steps is not None:
        raise ValueError(f"both epochs ({config.epochs}) and steps ({config.steps}) are given; give one of the two")
    if config.sync_batch_norm and config.strategy != "ddp":
        raise ValueError(f"sync_batch_norm needs strategy 'ddp', not {config.strategy!r}: only its ranks can talk")
    if config.compiler != "none" and config.strategy == "data_parallel":
        raise ValueError(
            f"compiler {config.compiler!r} does not go with strategy 'data_parallel', which copies the model at every "
            "step; choose 'ddp'"
        )
    if config.compiler == "xla" and (refused := xla.refusal(config)):
        raise ValueError(refused)
    for name in ("lr_warmup_epochs", "evaluate_every"):
        value = getattr(config, name)
        if config.epochs is not None and value is not None and value > config.epochs:
            raise ValueError(f"{name} is {value}, but the run ends after {config.epochs} epoch(s)")
    if config.evaluate_every and not config.evaluate:
        raise ValueError("evaluate_every is given, but evaluate is False; leave one of them out")
    if (config.checkpoint_every or config.resume) and not config.checkpoint_dir:
        raise ValueError("checkpoint_every and resume need a checkpoint_dir to save to and load from")


def _optional(config, name):
    return type(config).__dataclass_fields__[name].default is None


def _check_pair(data):
    pair = isinstance(data, (tuple, list)) and len(data) == 2
    if not pair or not all(hasattr(part, "__len__") and hasattr(part, "__getitem__") for part in data):
        raise TypeError(
            f"data is a {type(data).__name__}; pass a pair (train, test) of map-style datasets "
            "(with len() and indexing), or a function that returns one"
        )


def _did_you_mean(value, allowed):
    near = difflib.get_close_matches(str(value), [a for a in allowed if isinstance(a, str)], n=1)
    return f". Did you mean {near[0]!r}?" if near else ""

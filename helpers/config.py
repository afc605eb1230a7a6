"""`RunConfig`: everything that distinguishes one training run from another."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from . import device, releases
from .data.recipes import RECIPES
from .settings import described, setting, settings_of

# The names that settings are chosen from, and what each means. What they do stands in helpers.training and compiler.
MODELS = {
    "resnet8": "8 layers, 78 thousand weights",
    "resnet20": "20 layers, 270 thousand weights",
    "resnet18": "18 layers, 11 million weights, made for large images",
    "resnet50": "50 layers, 24 million weights, made for large images",
    "silunet": "separable convolutions, much pointwise work",
    "silu_mlp": "no convolution at all, small matrices",
    "transformer": "attention over patches of 4×4 pixels",
    "gpt": "predicts the next token of a text, 4 blocks, 0.8 million weights",
}
TORCHVISION_MODELS = ("resnet18", "resnet50")
WITH_BATCH_NORM = ("resnet8", "resnet20", "resnet18", "resnet50", "silunet")
OF_TOKENS = ("gpt", "tokens")  # the models and data sets of text; all others are of images
DATA = {name: RECIPES[name].summary.partition(";")[0] for name in RECIPES}
STRATEGIES = {
    "baseline": "one device",
    "data_parallel": "DataParallel: one process drives all devices",
    "ddp": "DDP: a process for each device, gradients averaged",
    "zero1": "ZeRO-1: DDP, and each process keeps the optimizer's state for a share of the weights",
    "fsdp": "FSDP2: each process keeps a share of weights, gradients and optimizer state",
}
WITH_RANKS = ("ddp", "zero1", "fsdp")  # the strategies with a process for each device
PRECISIONS = {
    "fp32": "32 bits throughout",
    "O1": "fp16 where it is safe, chosen for each operation",
    "O2": "fp16 weights, with fp32 copies for the update",
    "O3": "fp16 throughout, nothing to fall back on",
    "O1-bf16": "bf16 where it is safe, chosen for each operation",
    "O2-bf16": "bf16 weights, with fp32 copies for the update",
    "O3-bf16": "bf16 throughout, nothing to fall back on",
}
COMPILERS = {
    "none": "eager: one operation after the other",
    "auto": "tries plans in the first steps, keeps the fastest correct one",
    "inductor": "torch.compile, whatever it gains",
    "xla": "XLA, in an environment of its own (make xla)",
}
SHARDS = {
    "full": "weights are gathered for the forward pass, and again for the backward pass",
    "grad_op": "gathered weights are kept until the backward pass: less to send, more memory",
    "hybrid": "shards within a host (on one host: within half of the ranks), equal replicas across",
}
RECOMPUTED = {
    "full": "of each block only its input is kept; the rest is computed again in the backward pass",
    "selective": "matrix products, convolutions and attention are kept, the rest is computed again",
}
OPTIMIZERS = {"sgd": "SGD with momentum", "adamw": "AdamW, which scales the step of each weight by itself"}
SCALING = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}  # the power of the global batch that the rate grows with
SCHEDULES = {
    "constant": "the peak rate to the end",
    "cosine": "falls along half a cosine",
    "linear": "falls in a straight line",
    "cooldown": "the peak rate, falling over the last 30 % of the updates",
}
INPUT_PATHS = {
    "fast": "the whole set in the device's memory",
    "workers": "the usual DataLoader with torchvision transforms in worker processes",
}
XLA_PRECISIONS = ("fp32", "O1", "O1-bf16")
IN_LABELS = {
    "baseline": "baseline",
    "data_parallel": "DataParallel",
    "ddp": "DDP",
    "zero1": "ZeRO-1",
    "fsdp": "FSDP",
    "auto": "compiler auto",
    "inductor": "inductor",
    "xla": "XLA",
}


def _a_model(value):
    if not callable(value):
        raise TypeError(f"model is a {type(value).__name__}; pass a function that makes it, so that each rank can")


def _a_pair(value):
    pair = isinstance(value, (tuple, list)) and len(value) == 2
    if not callable(value) and not (pair and all(hasattr(p, "__len__") and hasattr(p, "__getitem__") for p in value)):
        raise TypeError(
            f"data is a {type(value).__name__}; pass a pair (train, test) of map-style datasets "
            "(with len() and indexing), or a function that returns one"
        )


def _a_loss(value):
    if not callable(value):
        raise TypeError(f"loss is {value!r}; pass a function (outputs, labels) -> mean loss, or None")


LEARNS = dict(changes_learning=True, in_checkpoint=True)  # decides which losses a run follows
PEAK = dict(changes_learning=True, in_checkpoint="peak_lr")  # decides the peak rate, together with others
TIMES = dict(changes_timing=True)
BOTH = LEARNS | TIMES
SPREADS = dict(changes_timing=True, spreads=True)  # learning changes only through the local batch


class ConfigError(ValueError):
    """A configuration that cannot be; `fields` names the settings to change, which a form marks."""

    def __init__(self, fields, message):
        super().__init__(message)
        self.fields = tuple(fields)

    def __reduce__(self):
        return ConfigError, (self.fields, str(self))


@dataclass(frozen=True)
class RunConfig:
    """One training run; wrong values are refused when it is made, before any process starts.

    Give either `global_batch` or `local_batch`; the other follows from
    global_batch = local_batch × nproc_per_node × nnodes × accumulation. With neither, the global batch is 64.
    Give either `epochs` or `steps`; with neither, one epoch.
    """

    model: str | Callable = setting(
        "resnet8",
        "a model's name",
        choices=MODELS,
        own=_a_model,
        or_own="a function without arguments that makes yours",
        **BOTH,
    )
    data: str | Any = setting(
        "digits",
        "a data set's name",
        choices=DATA,
        own=_a_pair,
        or_own="a pair (train, test) of map-style datasets, or a function that returns one",
        **BOTH,
    )
    strategy: str = setting("baseline", "how the work is divided among devices", choices=STRATEGIES, **SPREADS)
    nproc_per_node: int = setting(1, "devices used on each host", noun="devices", **SPREADS)
    nnodes: int = setting(
        1, "hosts that take part, with ddp, zero1 or fsdp (see `python -m helpers cluster`)", noun="hosts", **SPREADS
    )
    global_batch: int | None = setting(
        None, "samples in one update of the weights, over all devices", spreads=True, **BOTH
    )
    local_batch: int | None = setting(
        None,
        "samples that a device sees in one step; BatchNorm's statistics are theirs",
        flags=("batch-size",),
        changes_learning=True,
        **SPREADS,
    )
    epochs: int | None = setting(None, "passes over the training set", changes_learning=True)
    steps: int | None = setting(None, "updates of the weights, instead of epochs", changes_learning=True)
    optimizer: str = setting("sgd", "what turns gradients into updates", choices=OPTIMIZERS, **BOTH)
    lr: float = setting(0.05, "the rate for a global batch of base_batch", noun="learning rate", above=0, **PEAK)
    momentum: float = setting(0.9, "momentum of SGD", below=1, **LEARNS)
    weight_decay: float = setting(5e-4, "weight decay of the optimizer", **LEARNS)
    accumulation: int = setting(
        1,
        "micro-batches of local_batch whose gradients make one update of the weights",
        noun="micro-batches",
        **SPREADS,
    )
    lr_scaling: str = setting(
        "none",
        "how the peak rate follows the global batch",
        **PEAK,
        choices={"none": "the same for any batch", "linear": "in proportion to it", "sqrt": "with its square root"},
    )
    base_batch: int = setting(64, "the global batch that lr is meant for", **PEAK)
    lr_warmup_epochs: float = setting(0, "epochs, or a part of one, in which the rate rises to its peak", **LEARNS)
    schedule: str = setting("constant", "what the rate does after the warm-up", choices=SCHEDULES, **LEARNS)
    clip_norm: float | None = setting(None, "the largest norm of all gradients together (none: any)", above=0, **BOTH)
    precision: str = setting(
        "fp32",
        "the level of mixed precision",
        choices=PRECISIONS,
        flags=("amp-level",),
        aliases={"O0": "fp32", "fp16": "O1", "bf16": "O1-bf16"},
        **BOTH,
    )
    channels_last: bool = setting(False, "whether images keep the channels of a pixel side by side", **TIMES)
    compiler: str = setting(
        "none",
        "what compiles the model; the option without a value means auto",
        choices=COMPILERS,
        flags=("compiler-opt",),
        bare="auto",
        **TIMES,
    )
    sync_batch_norm: bool = setting(
        False,
        "whether BatchNorm uses the batches of all ranks together, with ddp, zero1 or fsdp",
        noun="SyncBatchNorm",
        only=WITH_RANKS,
        **BOTH,
    )
    shard: str = setting("full", "what fsdp keeps in shards", noun="sharding", choices=SHARDS, only=("fsdp",), **TIMES)
    offload: bool = setting(
        False, "whether fsdp's shards stay in the memory of the CPU", noun="offloading", only=("fsdp",), **TIMES
    )
    activation_checkpointing: str | None = setting(
        None,
        "what is computed again in the backward pass instead of being kept (none: nothing)",
        choices=RECOMPUTED,
        **TIMES,
    )
    loss: Callable | None = setting(
        None, "function (outputs, labels) -> mean loss (None: cross entropy)", own=_a_loss, **BOTH
    )
    seed: int = setting(0, "of the weights, the order of samples and augmentation", least=0, **LEARNS)
    threads: int | None = setting(None, "CPU threads a device (none: the machine's, see helpers.device)", **TIMES)
    # The machine of a record says which device was used, so `device` itself makes no difference between two records.
    device: str | None = setting(
        None, "a kind of device (none: the best there is)", choices=dict.fromkeys(device.KINDS, "")
    )
    input_path: str = setting("fast", "how batches are made", choices=INPUT_PATHS, **TIMES)
    num_workers: int = setting(
        2, "worker processes a device, with input_path workers", least=0, flags=("workers",), **TIMES
    )
    augment: bool = setting(True, "whether training images are shifted and flipped", noun="augmentation", **BOTH)
    warmup_steps: int = setting(3, "first steps, trained like all others but left out of the timing", least=0)
    evaluate: bool = setting(True, "whether accuracy on the whole test set is measured at the end of the run")
    evaluate_every: int | None = setting(None, "epochs between measurements of accuracy (none: only at the end)")
    checkpoint_dir: str | None = setting(None, "folder to save checkpoints in (none: never)")
    checkpoint_every: int | None = setting(None, "steps between two checkpoints")
    resume: bool = setting(False, "whether to go on from the newest sound checkpoint in checkpoint_dir")
    label: str = setting("", "the run's name in tables and plots (default: made from strategy and devices)")

    def __post_init__(self):
        for name, one in settings_of(type(self)).items():
            one.check(getattr(self, name))
            self._set(name, one.standard(getattr(self, name)))
        self._complete()
        self._check_together()

    def _set(self, name, value):
        object.__setattr__(self, name, value)  # the dataclass is frozen for everybody else

    # -- what follows from the values given, and what does not go together ------------------

    def _complete(self):
        parts = self.devices * self.accumulation
        product = f"nproc_per_node {self.nproc_per_node}"
        if self.nnodes > 1:
            product += f" × nnodes {self.nnodes}"
        if self.accumulation > 1:
            product += f" × accumulation {self.accumulation}"
        whole, local = self.global_batch, self.local_batch
        if local is not None and whole is not None and whole != local * parts:
            raise ValueError(
                f"global_batch {whole} is not local_batch {local} × {product} = {local * parts}; "
                "give only one of the two"
            )
        whole = whole or (local * parts if local else 64)
        if whole % parts:
            below = whole - whole % parts
            near = " or ".join(str(n) for n in (below, below + parts) if n)
            raise ValueError(
                f"global_batch {whole} cannot be split evenly over {product}: it is the local batch times these. "
                f"The nearest that can: {near}"
            )
        self._set("global_batch", whole)
        self._set("local_batch", whole // parts)
        self._set("epochs", 1 if self.epochs is None and self.steps is None else self.epochs)
        self._set("checkpoint_dir", self.checkpoint_dir and os.fspath(self.checkpoint_dir))
        self._set("label", self.label or self._made_label())

    def _made_label(self):
        name = IN_LABELS[self.strategy]
        parts = [name if self.strategy == "baseline" else f"{name} ×{self.devices}"]
        parts += [f"{self.nnodes} hosts"] * (self.nnodes > 1)
        parts += [IN_LABELS[self.compiler]] if self.compiler != "none" else []
        parts += [self.precision] * (self.precision != "fp32") + ["channels last"] * self.channels_last
        parts += [self.shard] * (self.shard != "full") + ["offload"] * self.offload
        parts += [f"recompute {self.activation_checkpointing}"] * bool(self.activation_checkpointing)
        parts += [f"{self.accumulation} micro-batches"] * (self.accumulation > 1)
        return " · ".join(parts)

    def _check_together(self):
        strategy, compiler, devices = self.strategy, self.compiler, self.nproc_per_node
        saves = self.checkpoint_every or self.resume
        refusals = (
            [
                (
                    strategy == "baseline" and devices != 1,
                    f"strategy 'baseline' uses one device, nproc_per_node is {devices}; for more devices choose 'ddp' "
                    "(or 'data_parallel')",
                ),
                (
                    self.nnodes > 1 and strategy not in WITH_RANKS,
                    f"strategy {strategy!r} stays on one host, nnodes is {self.nnodes}; choose 'ddp'",
                ),
            ]
            + [
                (
                    strategy not in one.only and getattr(self, name) != one.default,
                    f"{name!s} is {getattr(self, name)!r}, which only strategy "
                    f"{' or '.join(map(repr, one.only))} can do, not "
                    f"{strategy!r}; leave it out, or choose {one.only[0]!r}",
                )
                for name, one in settings_of(type(self)).items()
                if one.only
            ]
            + [
                (
                    self.shard == "hybrid" and (min(self.shard_groups) < 2 or prod(self.shard_groups) != self.devices),
                    f"shard 'hybrid' needs at least 2 replicas (hosts, or halves of one host's ranks) of 2 "
                    f"ranks or more, all "
                    f"alike; {devices} rank(s) on {self.nnodes} host(s) do not divide so. Use 4, or another "
                    f"even number, or "
                    "shard='full'",
                ),
                (
                    self.epochs is not None and self.steps is not None,
                    f"both epochs ({self.epochs}) and steps ({self.steps}) are given; give one of the two",
                ),
                (
                    compiler != "none" and strategy == "data_parallel",
                    f"compiler {compiler!r} does not go with strategy 'data_parallel', which copies the model "
                    f"at every step; "
                    "choose 'ddp'",
                ),
                (
                    strategy == "fsdp" and self.precision.startswith("O2") and self.model in WITH_BATCH_NORM,
                    no_batch_norm(self.model, self.precision),
                ),
                (
                    compiler == "auto" and strategy == "fsdp",
                    "compiler 'auto' compiles the model as a whole, and strategy 'fsdp' gathers its weights "
                    "block by block; "
                    "choose 'inductor' or 'none'",
                ),
                (
                    self.evaluate_every and not self.evaluate,
                    "evaluate_every is given, but evaluate is False; leave one of them out",
                ),
                (
                    saves and not self.checkpoint_dir,
                    "checkpoint_every and resume need a checkpoint_dir to save to and load from",
                ),
            ]
            + [
                (
                    self.epochs is not None and (getattr(self, name) or 0) > self.epochs,
                    f"{name!s} is {getattr(self, name)}, but the run ends after {self.epochs} epoch(s)",
                )
                for name in ("lr_warmup_epochs", "evaluate_every")
            ]
        )
        if isinstance(self.model, str) and isinstance(self.data, str):
            reads, holds = ("tokens" if name in OF_TOKENS else "images" for name in (self.model, self.data))
            fits = "data='tokens'" if reads == "tokens" else "model='gpt', or a data set of images"
            refusals.append(
                (
                    reads != holds,
                    f"model is {self.model!r}, which reads {reads}, and data is {self.data!r}, which holds {holds}; "
                    f"choose {fits}",
                )
            )
        if compiler == "xla":
            refusals += [
                (self.model in OF_TOKENS, f"model {self.model!r} is not offered with XLA; choose one for images"),
                (
                    self.device not in (None, "cpu"),
                    f"compiler 'xla' brings a device of its own; leave out device, which is {self.device!r}",
                ),
                (strategy in ("zero1", "fsdp"), f"strategy {strategy!r} is not offered with XLA; choose 'ddp'"),
                (self.activation_checkpointing, "XLA decides itself what it keeps; leave activation_checkpointing out"),
                (
                    self.sync_batch_norm,
                    "sync_batch_norm needs the other ranks within a step, which XLA on a CPU cannot reach; "
                    "leave it out",
                ),
                (self.channels_last, "XLA chooses the memory layout by itself; leave channels_last out"),
                (self.optimizer != "sgd", f"optimizer {self.optimizer!r} is not offered with XLA; it can be 'sgd'"),
                (
                    self.precision not in XLA_PRECISIONS,
                    f"precision {self.precision!r} is not offered with XLA; it can be {', '.join(XLA_PRECISIONS)}",
                ),
                (saves, "the XLA loop saves no checkpoints; leave checkpoint_every and resume out"),
            ]
        for wrong, why in refusals:
            if wrong:
                raise ValueError(why)

    # -- use ------------------------------------------------------------------------------

    @property
    def devices(self) -> int:
        """Devices on all hosts together."""
        return self.nproc_per_node * self.nnodes

    @property
    def processes(self) -> int:
        """Ranks on this machine: one a device where the strategy has ranks, else one."""
        return self.nproc_per_node if self.strategy in WITH_RANKS else 1

    @property
    def shard_groups(self) -> tuple:
        """(replicas, ranks that share one) of shard "hybrid", else ()."""
        if self.shard != "hybrid":
            return ()
        return (self.nnodes, self.nproc_per_node) if self.nnodes > 1 else (2, self.nproc_per_node // 2)

    def check_machine(self) -> "device.Machine":
        """The machine this run would use. Raises ValueError if it cannot: too few devices, or not this precision."""
        if self.compiler == "xla":
            return device.machine("cpu")
        here = device.machine(self.device)
        if here.kind != "cpu" and self.nproc_per_node > here.count:
            raise ValueError(
                f"{self.label} needs {self.nproc_per_node} devices, this machine has {here.count} "
                f"({here.kind}); use fewer, or device='cpu'"
            )
        if refused := precision_refusal(self.precision, here.kind):
            raise ValueError(refused)
        if self.strategy == "fsdp" and (refused := releases.fsdp_refusal(here.kind)):
            raise ValueError(refused)
        return here

    @property
    def peak_lr(self) -> float:
        """The learning rate after the warm-up: `lr`, scaled to the global batch."""
        return peak_lr(self.lr, self.lr_scaling, self.global_batch, self.base_batch)

    def but(self, **changes) -> "RunConfig":
        """A copy with some values changed; batch sizes and the label follow from them again.

        The global batch stays the same unless a batch size is among the changes.
        """
        if "local_batch" in changes:
            changes.setdefault("global_batch", None)
        else:
            changes["local_batch"] = None
        if "steps" in changes:
            changes.setdefault("epochs", None)
        elif "epochs" in changes:
            changes.setdefault("steps", None)
        changes.setdefault("label", "")
        return replace(self, **changes)

    def as_dict(self) -> dict:
        """Plain values for a record; the reader's own objects by their names."""
        return {name: self.recorded(name) for name in settings_of(type(self))}

    def recorded(self, name):
        """The value of one setting (or property) as it stands in a record."""
        value = getattr(self, name)
        if name == "loss" and value is None:
            return "cross_entropy"
        return value if value is None or isinstance(value, (bool, int, float, str)) else name_of(value)


SETTINGS = settings_of(RunConfig)  # {name: Setting}, in the order above
RunConfig.__doc__ += described(SETTINGS)


def peak_lr(lr, scaling, global_batch, base_batch) -> float:
    """The rate for `global_batch`, where `lr` is meant for `base_batch`, by a rule of SCALING."""
    return lr * (global_batch / base_batch) ** SCALING[scaling]


def name_of(thing) -> str:
    """What to call a model or data set in a record."""
    if isinstance(thing, str):
        return thing
    if isinstance(thing, (tuple, list)):
        return type(thing[0]).__name__
    return getattr(thing, "__qualname__", type(thing).__name__).replace("<locals>.", "")


def no_batch_norm(model, precision) -> str:
    """Why a model with BatchNorm is not trained by FSDP at level O2."""
    return (
        f"at precision {precision!r} strategy 'fsdp' gathers all weights in {dtype_of(precision)}, and {model} has "
        f"BatchNorm, which cannot mix that with its statistics in float32; choose {precision.replace('2', '1')!r}"
    )


def dtype_of(precision) -> str:
    """The format that most is computed in at a level of PRECISIONS, or one of its aliases."""
    level = SETTINGS["precision"].standard(precision)
    return "float32" if level == "fp32" else "bfloat16" if level.endswith("-bf16") else "float16"


def precision_refusal(precision, kind) -> str:
    """Why devices of `kind` cannot compute at a level, and at which they can; "" if they can."""
    dtype = dtype_of(precision)
    if dtype == "float32" or dtype in (able := device.dtypes(kind)):
        return ""
    choices = ", ".join(level for level in PRECISIONS if dtype_of(level) in able)
    return f"precision {precision!r} computes in {dtype}, which {kind} devices here cannot; they can: {choices}"

"""`RunConfig`: everything that distinguishes one training run from another, and what can be chosen."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any

from . import device, releases
from .data.recipes import RECIPES
from .settings import ConfigError, described, setting, settings_of

# The names that settings are chosen from, and what each means. Implemented in helpers.training and helpers.compiler.
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
COMPILERS = {
    "none": "eager: one operation after the other",
    "auto": "tries plans in the first steps, keeps the fastest correct one",
    "inductor": "torch.compile, whatever it gains",
    "xla": "XLA, in an environment of its own (make xla)",
}
COMPILER_LABELS = {"auto": "compiler auto", "inductor": "inductor", "xla": "XLA"}
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


@dataclass(frozen=True)
class Strategy:
    """A row of STRATEGIES: what a RunConfig has to know of a strategy, without importing torch.

    Attributes:
        label, summary: its name in labels; what it is, in a few words.
        trains: "module:class" of its helpers.training.strategies.Strategy.
        ranks: whether each device has a process.
        most: the most devices that it uses.
        settings: those that it can change, of the settings that only some strategies have.
        compilers: those that it can be combined with.
        refuses: yields (fields, message) of what is wrong with a RunConfig.
        refuses_kind: why it cannot train on a kind of device, or "".
    """

    label: str
    summary: str
    trains: str
    ranks: bool = True
    most: float = inf
    settings: tuple = ("sync_batch_norm",)
    compilers: tuple = tuple(COMPILERS)
    refuses: Callable = lambda config: ()
    refuses_kind: Callable = lambda kind: ""


def _data_parallel_refuses(config):
    if config.activation_checkpointing:  # its replicas would recompute with the weights of the original
        found = "activation_checkpointing cannot be combined with strategy 'data_parallel'; choose 'ddp'"
        yield ("activation_checkpointing", "strategy"), found


def _fsdp_refuses(config):
    groups = config.shard_groups
    if groups and (min(groups) < 2 or prod(groups) != config.devices):
        found = f"shard 'hybrid' cannot divide {config.devices} rank(s) on {config.nnodes} host(s)"
        needs = "it needs 2 or more equal replicas (hosts, or halves of one host's ranks) of 2 or more ranks"
        yield ("shard", "nproc_per_node"), f"{found}: {needs}. Use 4, or another even number, or shard='full'"
    if PRECISIONS[config.precision].masters and config.model in WITH_BATCH_NORM:
        yield ("precision", "strategy", "model"), no_batch_norm(config.model, config.precision)


STRATEGIES = {
    "baseline": Strategy("baseline", "one device", "helpers.training.strategies:Strategy", False, 1, ()),
    "data_parallel": Strategy(
        "DataParallel",
        "DataParallel: one process drives all devices",
        "helpers.training.strategies:DataParallel",
        False,
        inf,
        (),
        ("none",),
        _data_parallel_refuses,
    ),
    "ddp": Strategy("DDP", "DDP: a process for each device, gradients averaged", "helpers.training.strategies:DDP"),
    "zero1": Strategy(
        "ZeRO-1",
        "ZeRO-1: DDP, and each process keeps the optimizer's state for a share of the weights",
        "helpers.training.strategies:ZeRO1",
        compilers=("none", "auto", "inductor"),
    ),
    "fsdp": Strategy(
        "FSDP",
        "FSDP2: each process keeps a share of weights, gradients and optimizer state",
        "helpers.training.sharding:FSDP",
        settings=("sync_batch_norm", "shard", "offload"),
        compilers=("none", "inductor"),
        refuses=_fsdp_refuses,
        refuses_kind=releases.fsdp_refusal,
    ),
}


@dataclass(frozen=True)
class Precision:
    """A row of PRECISIONS: in which format a run keeps and computes what. Its name is its label.

    Attributes:
        summary: what it is, in a few words.
        dtype: name of the format that most is computed in.
        autocast: whether torch.amp picks the format of each operation.
        masters: whether the optimizer updates fp32 copies of weights in `dtype`; norm layers stay in fp32.
        aliases: other names for it, such as those of NVIDIA's apex.
        trains: "module:class" of its helpers.training.precision.MixedPrecision.
    """

    summary: str
    dtype: str = "float32"
    autocast: bool = False
    masters: bool = False
    aliases: tuple = ()
    trains: str = "helpers.training.precision:MixedPrecision"

    @property
    def half_weights(self) -> bool:
        """Whether the model's own weights are in `dtype`."""
        return self.masters or (self.dtype != "float32" and not self.autocast)

    @property
    def scaled(self) -> bool:
        """Whether the loss is scaled, which fp16 needs for its narrow range."""
        return self.dtype == "float16" and self.autocast


def _precisions():
    yield "fp32", Precision("32 bits throughout", aliases=("O0",))
    for name, dtype, end in (("fp16", "float16", ""), ("bf16", "bfloat16", "-bf16")):
        safe = f"{name} where it is safe, chosen for each operation"
        yield f"{name}-mixed", Precision(safe, dtype, True, aliases=(f"O1{end}", name))
        copies = f"{name} weights, with fp32 copies for the update"
        yield f"{name}-masters", Precision(copies, dtype, True, True, (f"O2{end}",))
        yield f"{name}-true", Precision(f"{name} throughout, nothing to fall back on", dtype, aliases=(f"O3{end}",))


PRECISIONS = dict(_precisions())


def _is_data(value):
    pair = isinstance(value, (tuple, list)) and len(value) == 2
    return callable(value) or (pair and all(hasattr(p, "__len__") and hasattr(p, "__getitem__") for p in value))


LEARNS = dict(changes_learning=True, in_checkpoint=True)  # decides which losses a run follows
PEAK = dict(changes_learning=True, in_checkpoint="peak_lr")  # decides the peak rate, together with others
TIMES = dict(changes_timing=True)
BOTH = LEARNS | TIMES
SPREADS = dict(changes_timing=True, spreads=True)  # learning changes only through the local batch
OWN_MODEL = dict(own=callable, or_own="a function without arguments that makes yours")
OWN_DATA = dict(own=_is_data, or_own="a pair (train, test) of map-style datasets, or a function that returns one")
OWN_LOSS = dict(own=callable, or_own="a function (outputs, labels) -> mean loss, or None")
RULES = {"none": "the same for any batch", "linear": "in proportion to it", "sqrt": "with its square root"}
SAVES = ("checkpoint_every", "resume")


@dataclass(frozen=True)
class RunConfig:
    """One training run; wrong values are refused when it is made, before any process starts.

    Give either `global_batch` or `local_batch`; the other follows from
    global_batch = local_batch × nproc_per_node × nnodes × accumulation. With neither, the global batch is 64.
    Give either `epochs` or `steps`; with neither, one epoch.
    """

    model: str | Callable = setting("resnet8", "a model's name", table=MODELS, **OWN_MODEL, **BOTH)
    data: str | Any = setting("digits", "a data set's name", table=DATA, **OWN_DATA, **BOTH)
    strategy: str = setting("baseline", "how the work is divided among devices", table=STRATEGIES, **SPREADS)
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
    optimizer: str = setting("sgd", "what turns gradients into updates", table=OPTIMIZERS, **BOTH)
    lr: float = setting(0.05, "the rate for a global batch of base_batch", noun="learning rate", above=0, **PEAK)
    momentum: float = setting(0.9, "momentum of SGD", below=1, **LEARNS)
    weight_decay: float = setting(5e-4, "weight decay of the optimizer", **LEARNS)
    accumulation: int = setting(
        1,
        "micro-batches of local_batch whose gradients make one update of the weights",
        noun="micro-batches",
        **SPREADS,
    )
    lr_scaling: str = setting("none", "how the peak rate follows the global batch", table=RULES, **PEAK)
    base_batch: int = setting(64, "the global batch that lr is meant for", **PEAK)
    lr_warmup_epochs: float = setting(0, "epochs, or a part of one, in which the rate rises to its peak", **LEARNS)
    schedule: str = setting("constant", "what the rate does after the warm-up", table=SCHEDULES, **LEARNS)
    clip_norm: float | None = setting(None, "the largest norm of all gradients together (none: any)", above=0, **BOTH)
    precision: str = setting("fp32", "the level of mixed precision", table=PRECISIONS, flags=("amp-level",), **BOTH)
    channels_last: bool = setting(False, "whether images keep the channels of a pixel side by side", **TIMES)
    compiler: str = setting(
        "none",
        "what compiles the model; the option without a value means auto",
        table=COMPILERS,
        flags=("compiler-opt",),
        bare="auto",
        **TIMES,
    )
    sync_batch_norm: bool = setting(
        False,
        "whether BatchNorm uses the batches of all ranks together, with ddp, zero1 or fsdp",
        noun="SyncBatchNorm",
        only=True,
        **BOTH,
    )
    shard: str = setting("full", "what fsdp keeps in shards", noun="sharding", table=SHARDS, only=True, **TIMES)
    offload: bool = setting(
        False, "whether fsdp's shards stay in the memory of the CPU", noun="offloading", only=True, **TIMES
    )
    activation_checkpointing: str | None = setting(
        None,
        "what is computed again in the backward pass instead of being kept (none: nothing)",
        table=RECOMPUTED,
        **TIMES,
    )
    loss: Callable | None = setting(None, "what is minimised (None: cross entropy)", **OWN_LOSS, **BOTH)
    seed: int = setting(0, "of the weights, the order of samples and augmentation", least=0, **LEARNS)
    threads: int | None = setting(None, "CPU threads a device (none: the machine's, see helpers.device)", **TIMES)
    # The machine of a record says which device was used, so `device` itself makes no difference between two records.
    device: str | None = setting(
        None, "a kind of device (none: the best there is)", table=dict.fromkeys(device.KINDS, "")
    )
    input_path: str = setting("fast", "how batches are made", table=INPUT_PATHS, **TIMES)
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
            self._set(name, one.checked(getattr(self, name)))
        self._complete()
        for fields, message in self._problems():
            raise ConfigError(fields, message)

    def _set(self, name, value):
        object.__setattr__(self, name, value)  # the dataclass is frozen for everybody else

    # -- what follows from the values given, and what cannot be combined ---------------------

    def _complete(self):
        parts = self.devices * self.accumulation
        counts = [(n, getattr(self, n)) for n in ("nproc_per_node", "nnodes", "accumulation")]
        product = " × ".join(f"{name} {count}" for name, count in counts if count > 1 or name == "nproc_per_node")
        whole, local = self.global_batch, self.local_batch
        if local is not None and whole is not None and whole != local * parts:
            found = f"global_batch {whole} is not local_batch {local} × {product} = {local * parts}"
            raise ConfigError(["global_batch", "local_batch"], f"{found}; give only one of the two")
        whole = whole or (local * parts if local else 64)
        if whole % parts:
            below = whole - whole % parts
            near = " or ".join(str(n) for n in (below, below + parts) if n)
            found = f"global_batch {whole} cannot be split evenly over {product}"
            raise ConfigError(["global_batch", "nproc_per_node"], f"{found}. The nearest that can: {near}")
        self._set("global_batch", whole)
        self._set("local_batch", whole // parts)
        self._set("epochs", 1 if self.epochs is None and self.steps is None else self.epochs)
        self._set("checkpoint_dir", self.checkpoint_dir and os.fspath(self.checkpoint_dir))
        self._set("label", self.label or self._made_label())

    def _made_label(self):
        strategy = STRATEGIES[self.strategy]
        parts = [strategy.label + (f" ×{self.devices}" if strategy.most > 1 else "")]
        parts += [f"{self.nnodes} hosts"] * (self.nnodes > 1)
        parts += [COMPILER_LABELS[self.compiler]] if self.compiler != "none" else []
        parts += [self.precision] * (self.precision != "fp32") + ["channels last"] * self.channels_last
        parts += [self.shard] * (self.shard != "full") + ["offload"] * self.offload
        parts += [f"recompute {self.activation_checkpointing}"] * bool(self.activation_checkpointing)
        parts += [f"{self.accumulation} micro-batches"] * (self.accumulation > 1)
        return " · ".join(parts)

    def _problems(self):
        """(fields to change, message) of each combination that cannot be."""
        strategy, called = STRATEGIES[self.strategy], f"strategy {self.strategy!r}"
        changed = {name for name, one in SETTINGS.items() if getattr(self, name) != one.default}
        if self.nproc_per_node > strategy.most:
            found = f"{called} uses {strategy.most} device, nproc_per_node is {self.nproc_per_node}"
            yield ("strategy", "nproc_per_node"), f"{found}; for more choose 'ddp' (or 'data_parallel')"
        if self.nnodes > 1 and not strategy.ranks:
            yield ("strategy", "nnodes"), f"{called} stays on one host, nnodes is {self.nnodes}; choose 'ddp'"
        for name in changed:
            if SETTINGS[name].only and name not in strategy.settings:
                able = " or ".join(repr(other) for other, one in STRATEGIES.items() if name in one.settings)
                found = f"{name} is {getattr(self, name)!r}, which only strategy {able} can do, not {self.strategy!r}"
                yield (name, "strategy"), f"{found}; leave it out, or change the strategy"
        if self.compiler not in strategy.compilers:
            able = " or ".join(map(repr, strategy.compilers))
            yield (
                ("compiler", "strategy"),
                f"{called} cannot be combined with compiler {self.compiler!r}; choose {able}",
            )
        yield from strategy.refuses(self)
        if self.compiler == "xla":
            yield from self._problems_of_xla(changed)
        if self.epochs is not None and self.steps is not None:
            both = f"both epochs ({self.epochs}) and steps ({self.steps}) are given"
            yield ("epochs", "steps"), f"{both}; give one of the two"
        for name in ("lr_warmup_epochs", "evaluate_every"):
            if self.epochs is not None and (getattr(self, name) or 0) > self.epochs:
                found = f"{name} is {getattr(self, name)}, but the run ends after {self.epochs} epoch(s)"
                yield (name, "epochs"), found
        if self.evaluate_every and not self.evaluate:
            yield (
                ("evaluate_every", "evaluate"),
                "evaluate_every is given, but evaluate is False; leave one of them out",
            )
        if any(getattr(self, name) for name in SAVES) and not self.checkpoint_dir:
            yield ["checkpoint_dir"], "checkpoint_every and resume need a checkpoint_dir to save to and load from"
        if isinstance(self.model, str) and isinstance(self.data, str):
            reads, holds = ("tokens" if name in OF_TOKENS else "images" for name in (self.model, self.data))
            if reads != holds:
                fits = "data='tokens'" if reads == "tokens" else "model='gpt', or a data set of images"
                found = f"model {self.model!r} reads {reads}, and data {self.data!r} holds {holds}"
                yield ("model", "data"), f"{found}; choose {fits}"

    def _problems_of_xla(self, changed):
        for name in ("activation_checkpointing", "sync_batch_norm", "channels_last", "optimizer", *SAVES):
            if name in changed:
                found = f"{name} is {getattr(self, name)!r}, which is not supported with XLA"
                yield (name, "compiler"), f"{found}; leave it out"
        if self.device not in (None, "cpu"):
            yield ("device", "compiler"), f"device is {self.device!r}, and XLA selects its own device; leave it out"
        if self.model in OF_TOKENS:
            yield ("model", "compiler"), f"model {self.model!r} is not supported with XLA; choose one for images"
        if PRECISIONS[self.precision].half_weights:
            able = ", ".join(name for name, one in PRECISIONS.items() if not one.half_weights)
            found = f"precision {self.precision!r} is not supported with XLA"
            yield ("precision", "compiler"), f"{found}; it can be {able}"

    # -- use ------------------------------------------------------------------------------

    @property
    def devices(self) -> int:
        """Devices on all hosts together."""
        return self.nproc_per_node * self.nnodes

    @property
    def processes(self) -> int:
        """Ranks on this machine: one a device where the strategy has ranks, else one."""
        return self.nproc_per_node if STRATEGIES[self.strategy].ranks else 1

    @property
    def shard_groups(self) -> tuple:
        """(replicas, ranks that share one) of shard "hybrid", else ()."""
        if self.shard != "hybrid":
            return ()
        return (self.nnodes, self.nproc_per_node) if self.nnodes > 1 else (2, self.nproc_per_node // 2)

    def check_machine(self) -> "device.Machine":
        """The machine this run would use. Raises ConfigError if it cannot."""
        if self.compiler == "xla":
            return device.machine("cpu")
        here = device.machine(self.device)
        if here.kind != "cpu" and self.nproc_per_node > here.count:
            found = f"{self.label} needs {self.nproc_per_node} devices, this machine has {here.count} ({here.kind})"
            raise ConfigError(["nproc_per_node"], f"{found}; use fewer, or device='cpu'")
        if refused := precision_refusal(self.precision, here.kind):
            raise ConfigError(["precision"], refused)
        if refused := STRATEGIES[self.strategy].refuses_kind(here.kind):
            raise ConfigError(["strategy"], refused)
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
        """The value of one setting (or property) as recorded."""
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


def precision_of(name) -> Precision:
    """The row of PRECISIONS with this name or alias."""
    return PRECISIONS[SETTINGS["precision"].checked(name)]


def precision_refusal(name, kind) -> str:
    """Why devices of `kind` cannot compute at a precision, and at which they can; "" if they can."""
    dtype = precision_of(name).dtype
    if dtype == "float32" or dtype in (able := device.dtypes(kind)):
        return ""
    choices = ", ".join(name for name, one in PRECISIONS.items() if one.dtype in able)
    return f"precision {name!r} computes in {dtype}, which {kind} devices here cannot; they can: {choices}"


def no_batch_norm(model, precision) -> str:
    """Why FSDP does not train a model with BatchNorm at a precision with masters."""
    dtype = PRECISIONS[precision].dtype
    instead = next(name for name, one in PRECISIONS.items() if one.dtype == dtype and not one.half_weights)
    why = f"gathers all weights in {dtype}, and {model} has BatchNorm, whose statistics stay in float32"
    return f"at precision {precision!r} strategy 'fsdp' {why}; choose {instead!r}"

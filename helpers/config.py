"""`RunConfig`: everything that distinguishes one training run from another, and what can be chosen."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any

from . import device, releases
from .data.recipes import RECIPES
from .settings import ABOVE_0, BELOW_1, FROM_0, ConfigError, setting, settings_of

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
DATA = {name: recipe.summary for name, recipe in RECIPES.items()}
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
RULES = {"none": "the same for any batch", "linear": "in proportion to it", "sqrt": "with its square root"}
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
    """A row of STRATEGIES: what a RunConfig has to know of a strategy, without importing torch."""

    label: str  # its name in labels
    summary: str  # what it is, in a few words
    trains: str  # "module:class" of its helpers.training.strategies.Strategy
    ranks: bool = True  # whether each device has a process
    most: float = inf  # devices that it uses
    settings: tuple = ("sync_batch_norm",)  # that it can change, of those that only some strategies have
    compilers: tuple = tuple(COMPILERS)  # that it can be combined with
    refuses: Callable = lambda config: ()  # yields (fields, message) of what is wrong with a RunConfig
    refuses_kind: Callable = lambda kind: ""  # why it cannot train on a kind of device, or ""


def _data_parallel_refuses(config):
    if config.activation_checkpointing:  # its replicas would recompute with the weights of the original
        found = "activation_checkpointing cannot be combined with strategy 'data_parallel'; choose 'ddp'"
        yield ("activation_checkpointing", "strategy"), found


def _fsdp_refuses(config):
    groups = config.shard_groups
    if groups and (min(groups) < 2 or prod(groups) != config.devices):
        found = f"shard 'hybrid' cannot divide {config.devices} rank(s) on {config.nnodes} host(s)"
        needs = "2 or more equal replicas (hosts, or halves of one host's ranks) of 2 or more ranks"
        yield ("shard", "nproc_per_node"), f"{found}; it needs {needs}"
    if PRECISIONS[config.precision].masters and config.model in WITH_BATCH_NORM:
        yield ("precision", "strategy", "model"), no_batch_norm(config.model, config.precision)


STRATEGIES = {
    "baseline": Strategy(
        "baseline", "one device", "helpers.training.strategies:Strategy", ranks=False, most=1, settings=()
    ),
    "data_parallel": Strategy(
        "DataParallel",
        "DataParallel: one process drives all devices",
        "helpers.training.strategies:DataParallel",
        ranks=False,
        settings=(),
        compilers=("none",),
        refuses=_data_parallel_refuses,
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
ONLY = {name for row in STRATEGIES.values() for name in row.settings}  # settings that only some strategies have


@dataclass(frozen=True)
class Precision:
    """A row of PRECISIONS: in which format a run keeps and computes what. Its name is its label."""

    summary: str  # what it is, in a few words
    dtype: str = "float32"  # the format that most is computed in
    autocast: bool = False  # whether torch.amp picks the format of each operation
    masters: bool = False  # whether the optimizer updates fp32 copies of weights in `dtype`; norm layers stay in fp32
    aliases: tuple = ()  # other names for it, such as those of NVIDIA's apex
    trains: str = "helpers.training.precision:MixedPrecision"  # "module:class" of its MixedPrecision

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
SAVES = ("checkpoint_dir", "checkpoint_every", "resume")
XLA_LACKS = ("activation_checkpointing", "sync_batch_norm", "channels_last", "optimizer", *SAVES)
ENDS = dict(changes_learning=True)  # a checkpoint can be trained further
MODEL = dict(table=MODELS, own=(callable, "a function without arguments that makes yours"))
TWO_SETS = dict(table=DATA, own=(_is_data, "a pair (train, test) of map-style datasets, or a function that makes it"))
LOSS = dict(own=(callable, "a function (outputs, labels) -> mean loss, or None"))
COMPILED = dict(table=COMPILERS, bare="auto", **TIMES)


@dataclass(frozen=True)
class RunConfig:
    """One training run; wrong values are refused when it is made, before any process starts.

    Give either `global_batch` or `local_batch`; the other follows from
    global_batch = local_batch × nproc_per_node × nnodes × accumulation. With neither, the global batch is 64.
    Give either `epochs` or `steps`; with neither, one epoch.

    Raises:
        ConfigError: a ValueError; it names the field, what it may be, and what to do.
    """

    model: str | Callable = setting("resnet8", "a model's name", **MODEL, **BOTH)
    data: str | Any = setting("digits", "a data set's name", **TWO_SETS, **BOTH)
    strategy: str = setting("baseline", "how the work is divided among devices", table=STRATEGIES, **SPREADS)
    nproc_per_node: int = setting(1, "devices used on each host", noun="devices", **SPREADS)
    nnodes: int = setting(1, "hosts that take part (see `python -m helpers cluster`)", noun="hosts", **SPREADS)
    global_batch: int | None = setting(None, "samples in one update, over all devices", spreads=True, **BOTH)
    local_batch: int | None = setting(None, "a device's samples in one step; BatchNorm sees these", **ENDS, **SPREADS)
    epochs: int | None = setting(None, "passes over the training set", **ENDS)
    steps: int | None = setting(None, "updates of the weights, instead of epochs", **ENDS)
    optimizer: str = setting("sgd", "what turns gradients into updates", table=OPTIMIZERS, **BOTH)
    lr: float = setting(0.05, "the rate for a global batch of base_batch", noun="learning rate", range=ABOVE_0, **PEAK)
    momentum: float = setting(0.9, "momentum of SGD", range=BELOW_1, **LEARNS)
    weight_decay: float = setting(5e-4, "weight decay of the optimizer", **LEARNS)
    accumulation: int = setting(1, "micro-batches in one update of the weights", noun="micro-batches", **SPREADS)
    lr_scaling: str = setting("none", "how the peak rate follows the global batch", table=RULES, **PEAK)
    base_batch: int = setting(64, "the global batch that lr is meant for", **PEAK)
    lr_warmup_epochs: float = setting(0, "epochs, or a part of one, in which the rate rises to its peak", **LEARNS)
    schedule: str = setting("constant", "what the rate does after the warm-up", table=SCHEDULES, **LEARNS)
    clip_norm: float | None = setting(None, "the largest norm of all gradients (none: any)", range=ABOVE_0, **BOTH)
    precision: str = setting("fp32", "the level of mixed precision", table=PRECISIONS, **BOTH)
    channels_last: bool = setting(False, "whether images keep the channels of a pixel side by side", **TIMES)
    compiler: str = setting("none", "what compiles the model; the option without a value means auto", **COMPILED)
    sync_batch_norm: bool = setting(False, "whether BatchNorm sees all ranks' batches", noun="SyncBatchNorm", **BOTH)
    shard: str = setting("full", "what fsdp keeps in shards", noun="sharding", table=SHARDS, **TIMES)
    offload: bool = setting(False, "whether fsdp's shards stay in the memory of the CPU", noun="offloading", **TIMES)
    activation_checkpointing: str | None = setting(None, "what the backward pass recomputes", table=RECOMPUTED, **TIMES)
    loss: Callable | None = setting(None, "what is minimised (None: cross entropy)", **LOSS, **BOTH)
    seed: int = setting(0, "of the weights, the order of samples and augmentation", range=FROM_0, **LEARNS)
    threads: int | None = setting(None, "CPU threads a device (none: the machine's, see helpers.device)", **TIMES)
    # The machine of a record says which device was used, so `device` itself makes no difference between two records.
    device: str | None = setting(None, "a kind of device (none: the best there is)", table=dict.fromkeys(device.KINDS))
    input_path: str = setting("fast", "how batches are made", table=INPUT_PATHS, **TIMES)
    num_workers: int = setting(2, "worker processes a device, with input_path workers", range=FROM_0, **TIMES)
    augment: bool = setting(True, "whether training images are shifted and flipped", noun="augmentation", **BOTH)
    warmup_steps: int = setting(3, "first steps, trained like all others but left out of the timing", range=FROM_0)
    evaluate: bool = setting(True, "whether accuracy on the whole test set is measured at the end of the run")
    evaluate_every: int | None = setting(None, "epochs between measurements of accuracy (none: only at the end)")
    checkpoint_dir: str | None = setting(None, "folder to save checkpoints in (none: never)")
    checkpoint_every: int | None = setting(None, "steps between checkpoints (none: once an epoch); one more at the end")
    resume: bool = setting(False, "whether to go on from the newest sound checkpoint in checkpoint_dir")
    label: str = setting("", "the run's name in tables and plots (default: made from strategy and devices)")

    def __post_init__(self):
        for name, one in settings_of(type(self)).items():
            self._set(name, one.checked(getattr(self, name)))
        self._complete()
        for fields, message in (*self._problems(), *STRATEGIES[self.strategy].refuses(self)):
            raise ConfigError(fields, message)

    def _set(self, name, value):
        object.__setattr__(self, name, value)  # the dataclass is frozen for everybody else

    # -- what follows from the values given, and what cannot be combined ---------------------

    def _complete(self):
        parts = self.devices * self.accumulation
        counts = {name: getattr(self, name) for name in ("nproc_per_node", "nnodes", "accumulation")}
        product = " × ".join(f"{name} {count}" for name, count in counts.items())
        whole, local = self.global_batch, self.local_batch
        if local is not None and whole is not None and whole != local * parts:
            found = f"global_batch {whole} is not local_batch {local} × {product} = {local * parts}"
            raise ConfigError(["global_batch", "local_batch"], f"{found}; give only one of the two")
        whole = whole or (local * parts if local else 64)
        if whole % parts:
            below = whole - whole % parts
            near = " or ".join(str(n) for n in (below, below + parts) if n)
            found = f"global_batch {whole} cannot be split evenly over {product}; choose {near}"
            raise ConfigError(["global_batch", "nproc_per_node"], found)
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
        """(fields to change, message) of each combination that cannot be, whatever the strategy's own."""
        strategy, given = STRATEGIES[self.strategy], {name: repr(getattr(self, name)) for name in SETTINGS}
        changed = [name for name, one in SETTINGS.items() if getattr(self, name) != one.default]

        def clash(name, other, advice):
            return (name, other), f"{name} {given[name]} cannot be combined with {other} {given[other]}; {advice}"

        if self.nproc_per_node > strategy.most:
            yield clash("strategy", "nproc_per_node", "for more devices choose 'ddp' (or 'data_parallel')")
        if self.nnodes > 1 and not strategy.ranks:
            yield clash("strategy", "nnodes", "for several hosts choose 'ddp'")
        for name in changed:
            if name in ONLY and name not in strategy.settings:
                able = " or ".join(repr(other) for other, row in STRATEGIES.items() if name in row.settings)
                yield clash(name, "strategy", f"leave it out, or choose {able}")
        if self.compiler not in strategy.compilers:
            yield clash("compiler", "strategy", f"choose {' or '.join(map(repr, strategy.compilers))}")
        if self.compiler == "xla":
            for name in XLA_LACKS:
                if name in changed:
                    yield clash(name, "compiler", "leave it out")
            if self.device not in (None, "cpu"):
                yield clash("device", "compiler", "leave it out: XLA selects its own device")
            if self.model in OF_TOKENS:
                yield clash("model", "compiler", "choose one for images")
            if PRECISIONS[self.precision].half_weights:
                able = ", ".join(name for name, row in PRECISIONS.items() if not row.half_weights)
                yield clash("precision", "compiler", f"choose one of {able}")
        if self.epochs is not None and self.steps is not None:
            yield clash("epochs", "steps", "give one of the two")
        for name in ("lr_warmup_epochs", "evaluate_every"):
            if self.epochs and (getattr(self, name) or 0) > self.epochs:
                yield clash(name, "epochs", "the run ends before")
        if self.evaluate_every and not self.evaluate:
            yield clash("evaluate_every", "evaluate", "leave one of them out")
        if any(getattr(self, name) for name in SAVES) and not self.checkpoint_dir:
            yield ["checkpoint_dir"], "checkpoint_every and resume need a checkpoint_dir to save to and load from"
        if isinstance(self.model, str) and isinstance(self.data, str):
            if (self.model in OF_TOKENS) != (self.data in OF_TOKENS):
                yield clash("model", "data", "model 'gpt' reads data 'tokens', all others read images")

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
        follow = {"label": "", "global_batch" if "local_batch" in changes else "local_batch": None}
        if "steps" in changes or "epochs" in changes:
            follow.update(steps=None, epochs=None)
        return replace(self, **{**follow, **changes})

    def as_dict(self) -> dict:
        """Plain values for a record; the reader's own objects by their names."""
        return {name: self.recorded(name) for name in settings_of(type(self))}

    def recorded(self, name):
        """The value of one setting (or property) as recorded."""
        value = getattr(self, name)
        if name == "loss" and value is None:
            return "cross_entropy"
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        thing = value[0] if isinstance(value, (tuple, list)) else value
        return getattr(thing, "__qualname__", type(thing).__name__).replace("<locals>.", "")


SETTINGS = settings_of(RunConfig)  # {name: Setting}, in the order above
RunConfig.__doc__ += "\n    Attributes:\n" + "\n".join(f"        {s.name}: {s.help}." for s in SETTINGS.values())


def peak_lr(lr, scaling, global_batch, base_batch) -> float:
    """The rate for `global_batch`, where `lr` is meant for `base_batch`, by one of RULES."""
    return lr * (global_batch / base_batch) ** {"none": 0, "linear": 1, "sqrt": 0.5}[scaling]


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
    instead = next(name for name, row in PRECISIONS.items() if row.dtype == dtype and not row.half_weights)
    why = f"with precision {precision!r} strategy 'fsdp' gathers all weights in {dtype}"
    return f"{why}, and {model} has BatchNorm, whose statistics stay in float32; choose {instead!r}"

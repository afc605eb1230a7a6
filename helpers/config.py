"""`RunConfig`: everything that distinguishes one training run from another."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from . import datasets, device, models

STRATEGIES = ("baseline", "data_parallel", "ddp")
PRECISIONS = {"fp32": "fp32", "O0": "fp32"}  # the source articles' name for it, and ours
COMPILERS = ("none",)
INPUT_PATHS = ("fast", "workers")


@dataclass(frozen=True)
class RunConfig:
    """One training run; wrong values are refused when it is made, before any process starts.

    Give either `global_batch` (samples in one update of the weights, over all devices) or
    `local_batch` (samples a device sees in one step); the other follows from
    global_batch = local_batch × nproc_per_node. With neither, the global batch is 64.
    Give either `epochs` or `steps`; with neither, one epoch.

    Attributes:
        model: a name from `helpers.models.NAMES`, or a function without arguments that makes a model.
        data: a name from `helpers.datasets.NAMES`, a pair (train, test) of map-style datasets, or a
            function that returns such a pair.
        strategy: one of STRATEGIES.
        nproc_per_node: devices used. `ddp` starts one process for each, `data_parallel` drives them
            all from one process, `baseline` uses one.
        lr, momentum, weight_decay: of SGD.
        sync_batch_norm: whether BatchNorm uses the statistics of all ranks' batches together (ddp only).
        loss: function (outputs, labels) -> mean loss (None: cross entropy).
        precision: one of PRECISIONS.
        compiler: one of COMPILERS.
        seed: of weights, order of samples and augmentation.
        threads: CPU threads a device (None: the machine's, see `helpers.device`).
        device: a device kind (None: the best there is).
        input_path: "fast" keeps the whole set in the device's memory, "workers" is the usual
            DataLoader with torchvision transforms in `num_workers` processes.
        warmup_steps: first steps, trained like all others but left out of the timing.
        evaluate: whether accuracy on the whole test set is measured at the end of the run.
        checkpoint_dir, checkpoint_every: where and every how many steps to save (None: never).
        resume: whether to go on from the newest sound checkpoint in checkpoint_dir.
        label: the run's name in tables and plots (default: made from strategy and devices).
    """

    model: str | Callable = "resnet8"
    data: Any = "digits"
    strategy: str = "baseline"
    nproc_per_node: int = 1
    global_batch: int | None = None
    local_batch: int | None = None
    epochs: int | None = None
    steps: int | None = None
    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4
    precision: str = "fp32"
    compiler: str = "none"
    sync_batch_norm: bool = False
    loss: Callable | None = None
    seed: int = 0
    threads: int | None = None
    device: str | None = None
    input_path: str = "fast"
    num_workers: int = 2
    augment: bool = True
    warmup_steps: int = 3
    evaluate: bool = True
    checkpoint_dir: str | None = None
    checkpoint_every: int | None = None
    resume: bool = False
    label: str = ""

    def __post_init__(self):
        self._check_choices()
        self._check_numbers()
        self._complete()
        self._check_together()

    # -- validation -----------------------------------------------------------------------

    def _check_choices(self):
        for name, allowed in (
            ("strategy", STRATEGIES),
            ("precision", tuple(PRECISIONS)),
            ("compiler", COMPILERS),
            ("input_path", INPUT_PATHS),
            ("device", (None, *device.KINDS)),
        ):
            value = getattr(self, name)
            if value not in allowed:
                choices = ", ".join(map(repr, allowed))
                raise ValueError(f"{name} is {value!r}; allowed: {choices}{_did_you_mean(value, allowed)}")
        for name, names in (("model", models.NAMES), ("data", datasets.NAMES)):
            value = getattr(self, name)
            if isinstance(value, str) and value not in names:
                choices = ", ".join(map(repr, names))
                own = "a function that makes yours" if name == "model" else "a pair (train, test) of datasets"
                raise ValueError(f"{name} is {value!r}; allowed: {choices}, or {own}{_did_you_mean(value, names)}")
        if not isinstance(self.model, str) and not callable(self.model):
            made = type(self.model).__name__
            raise TypeError(f"model is a {made}; pass a function that makes it, so that each rank can")
        if self.loss is not None and not callable(self.loss):
            raise TypeError(f"loss is {self.loss!r}; pass a function (outputs, labels) -> mean loss, or None")
        if not isinstance(self.data, str) and not callable(self.data):
            _check_pair(self.data)

    def _check_numbers(self):
        for name, least in (
            ("nproc_per_node", 1), ("global_batch", 1), ("local_batch", 1), ("epochs", 1), ("steps", 1),
            ("threads", 1), ("num_workers", 0), ("warmup_steps", 0), ("checkpoint_every", 1), ("seed", 0),
        ):  # fmt: skip
            value = getattr(self, name)
            optional = {f.name: f.default for f in fields(self)}[name] is None
            if value is None and optional:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} is {value!r}; it must be a whole number, {least} or more")
            if value < least:
                raise ValueError(f"{name} is {value}; it must be {least} or more")
        for name in ("lr", "momentum", "weight_decay"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{name} is {value!r}; it must be a number")
            if not 0 <= value < float("inf") or (name == "lr" and value == 0):
                least = "above 0" if name == "lr" else "0 or more"
                raise ValueError(f"{name} is {value}; it must be {least} and finite")

    def _complete(self):
        """Fill in what follows from what was given."""
        fill = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731  frozen dataclass
        if self.global_batch is not None and self.local_batch is not None:
            if self.global_batch != self.local_batch * self.nproc_per_node:
                raise ValueError(
                    f"global_batch {self.global_batch} is not local_batch {self.local_batch} × nproc_per_node "
                    f"{self.nproc_per_node} = {self.local_batch * self.nproc_per_node}; give only one of the two"
                )
        elif self.local_batch is not None:
            fill("global_batch", self.local_batch * self.nproc_per_node)
        else:
            whole = self.global_batch or 64
            if whole % self.nproc_per_node:
                below = whole - whole % self.nproc_per_node
                near = " or ".join(str(n) for n in (below, below + self.nproc_per_node) if n)
                raise ValueError(
                    f"global_batch {whole} cannot be split evenly over {self.nproc_per_node} devices; "
                    f"the nearest that can: {near}"
                )
            fill("global_batch", whole)
            fill("local_batch", whole // self.nproc_per_node)
        if self.epochs is None and self.steps is None:
            fill("epochs", 1)
        fill("precision", PRECISIONS[self.precision])
        if not self.label:
            name = {"baseline": "baseline", "data_parallel": "DataParallel", "ddp": "DDP"}[self.strategy]
            fill("label", name if self.strategy == "baseline" else f"{name} ×{self.nproc_per_node}")

    def _check_together(self):
        if self.strategy == "baseline" and self.nproc_per_node != 1:
            raise ValueError(
                f"strategy 'baseline' uses one device, nproc_per_node is {self.nproc_per_node}; "
                "for more devices choose 'ddp' (or 'data_parallel')"
            )
        if self.epochs is not None and self.steps is not None:
            raise ValueError(f"both epochs ({self.epochs}) and steps ({self.steps}) are given; give one of the two")
        if self.sync_batch_norm and self.strategy != "ddp":
            raise ValueError(f"sync_batch_norm needs strategy 'ddp', not {self.strategy!r}: only its ranks can talk")
        if (self.checkpoint_every or self.resume) and not self.checkpoint_dir:
            raise ValueError("checkpoint_every and resume need a checkpoint_dir to save to and load from")

    # -- use ------------------------------------------------------------------------------

    @property
    def processes(self) -> int:
        """Ranks on this machine: one a device for DDP, else one."""
        return self.nproc_per_node if self.strategy == "ddp" else 1

    def check_machine(self) -> "device.Machine":
        """The machine this run would use. Raises ValueError if it has too few devices."""
        here = device.machine(self.device)
        if here.kind != "cpu" and self.nproc_per_node > here.count:
            raise ValueError(
                f"{self.label} needs {self.nproc_per_node} devices, this machine has {here.count} "
                f"({here.kind}); use fewer, or device='cpu'"
            )
        return here

    def but(self, **changes) -> "RunConfig":
        """A copy with some values changed; batch sizes and label are worked out anew.

        The global batch is kept unless a batch size is among the changes.
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
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["model"] = name_of(self.model)
        values["data"] = name_of(self.data)
        values["loss"] = "cross_entropy" if self.loss is None else name_of(self.loss)
        return values


def name_of(thing) -> str:
    """What to call a model or data set in a record."""
    if isinstance(thing, str):
        return thing
    if isinstance(thing, (tuple, list)):
        return type(thing[0]).__name__
    return getattr(thing, "__qualname__", type(thing).__name__).replace("<locals>.", "")


def _check_pair(data):
    sized = all(hasattr(part, "__len__") and hasattr(part, "__getitem__") for part in data) if _is_pair(data) else False
    if not sized:
        raise TypeError(
            f"data is a {type(data).__name__}; pass a pair (train, test) of map-style datasets "
            "(with len() and indexing), or a function that returns one"
        )


def _is_pair(data):
    return isinstance(data, (tuple, list)) and len(data) == 2


def _did_you_mean(value, allowed):
    import difflib

    near = difflib.get_close_matches(str(value), [a for a in allowed if isinstance(a, str)], n=1)
    return f". Did you mean {near[0]!r}?" if near else ""



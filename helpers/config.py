"""`RunConfig`: everything that distinguishes one training run from another."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from . import config_checks as checks
from . import device, xla
from .config_checks import COMPILERS, INPUT_PATHS, PRECISIONS, STRATEGIES
from .training import schedules

__all__ = ["COMPILERS", "INPUT_PATHS", "PRECISIONS", "STRATEGIES", "RunConfig", "name_of"]


@dataclass(frozen=True)
class RunConfig:
    """One training run; wrong values are refused when it is made, before any process starts.

    Give either `global_batch` (samples in one update of the weights, over all devices) or
    `local_batch` (samples a device sees in one step); the other follows from
    global_batch = local_batch × nproc_per_node × nnodes × accumulation. With neither, the global batch is 64.
    Give either `epochs` or `steps`; with neither, one epoch.

    Attributes:
        model: a name from `helpers.training.models.NAMES`, or a function without arguments that makes a model.
        data: a name from `helpers.data.sets.NAMES`, a pair (train, test) of map-style datasets, or a
            function that returns such a pair.
        strategy: one of STRATEGIES.
        nproc_per_node: devices used on each host. `ddp` starts one process for each, `data_parallel`
            drives them all from one process, `baseline` uses one.
        nnodes: hosts that take part (ddp only); `python -m helpers hosts` says how to start such a run.
        accumulation: micro-batches of `local_batch` whose gradients make one update of the weights.
        lr, momentum, weight_decay: of SGD; `lr` is meant for a global batch of `base_batch`.
        lr_scaling: how the peak rate follows the global batch, one of schedules.SCALING.
        lr_warmup_epochs: epochs (or a part of one) in which the rate rises to its peak.
        schedule: what the rate does then, one of schedules.SCHEDULES.
        clip_norm: the most that the norm of all gradients together may be (None: no limit).
        sync_batch_norm: whether BatchNorm uses the statistics of all ranks' batches together (ddp only).
        loss: function (outputs, labels) -> mean loss (None: cross entropy).
        precision: a level of helpers.training.precision, or one of its aliases (PRECISIONS).
        channels_last: whether images and convolution weights keep the channels of a pixel side by side.
        compiler: one of COMPILERS: "auto" tries plans in the first steps and keeps the fastest right one
            (helpers.compiler.optimize), "inductor" compiles come what may, "xla" trains in the XLA environment.
        seed: of weights, order of samples and augmentation.
        threads: CPU threads a device (None: the machine's, see `helpers.device`).
        device: a device kind (None: the best there is).
        input_path: "fast" keeps the whole set in the device's memory, "workers" is the usual
            DataLoader with torchvision transforms in `num_workers` processes.
        warmup_steps: first steps, trained like all others but left out of the timing.
        evaluate: whether accuracy on the whole test set is measured at the end of the run.
        evaluate_every: epochs between such measurements on the way (None: only at the end).
        checkpoint_dir, checkpoint_every: where and every how many steps to save (None: never).
        resume: whether to go on from the newest sound checkpoint in checkpoint_dir.
        label: the run's name in tables and plots (default: made from strategy and devices).
    """

    model: str | Callable = "resnet8"
    data: Any = "digits"
    strategy: str = "baseline"
    nproc_per_node: int = 1
    nnodes: int = 1
    global_batch: int | None = None
    local_batch: int | None = None
    epochs: int | None = None
    steps: int | None = None
    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4
    accumulation: int = 1
    lr_scaling: str = "none"
    base_batch: int = 64
    lr_warmup_epochs: float = 0
    schedule: str = "constant"
    clip_norm: float | None = None
    precision: str = "fp32"
    channels_last: bool = False
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
    evaluate_every: int | None = None
    checkpoint_dir: str | None = None
    checkpoint_every: int | None = None
    resume: bool = False
    label: str = ""

    def __post_init__(self):
        checks.choices(self)
        checks.numbers(self)
        for name, value in checks.completed(self).items():
            object.__setattr__(self, name, value)  # the dataclass is frozen for everybody else
        checks.together(self)

    # -- use ------------------------------------------------------------------------------

    @property
    def devices(self) -> int:
        """Devices on all hosts together."""
        return self.nproc_per_node * self.nnodes

    @property
    def processes(self) -> int:
        """Ranks on this machine: one a device for DDP, else one."""
        return self.nproc_per_node if self.strategy == "ddp" else 1

    def check_machine(self) -> "device.Machine":
        """The machine this run would use. Raises ValueError if it cannot: too few devices, or not this precision."""
        if self.compiler == "xla":
            xla.python()  # raises XlaMissing, which says how to get it
            return device.machine("cpu")
        from .training import precision  # imports torch

        here = device.machine(self.device)
        if here.kind != "cpu" and self.nproc_per_node > here.count:
            raise ValueError(
                f"{self.label} needs {self.nproc_per_node} devices, this machine has {here.count} "
                f"({here.kind}); use fewer, or device='cpu'"
            )
        if refused := precision.refusal(self.precision, here.kind):
            raise ValueError(refused)
        return here

    @property
    def peak_lr(self) -> float:
        """The learning rate after the warm-up: `lr`, scaled to the global batch."""
        return schedules.peak_lr(self.lr, self.lr_scaling, self.global_batch, self.base_batch)

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

"""A ladder of runs, one after the other, and their comparison."""

import math
import time
from functools import partial

from .. import cluster, device
from ..config import RunConfig
from ..language import Message
from ..launcher.errors import RankError
from .comparison import Comparison
from .run import in_turn, ready, recorded

HALVES = {"bf16": "bfloat16", "fp16": "float16"}  # precisions with autocast


def ladder(devices=None, full=False, **settings) -> list:
    """The rungs from one device to all: baseline, DataParallel, DDP on 2, 4, … devices.

    `settings` are RunConfig's; the global batch is the same on every rung, so all rungs do the
    same training and only the devices change. With `full` rungs follow that change the training,
    one thing at a time: DDP in the fastest half format here, then with channels last, and DDP with
    a global batch that grows with the devices, the learning rate scaled to it.

    Returns the RunConfigs in a list, the baseline first. `devices` is how many to use (None: all of this machine).

    Raises:
        ValueError: `devices` is no whole number from 1 on, or a setting is wrong (ConfigError).
    """
    here = device.machine(settings.get("device"))
    if devices is not None and (isinstance(devices, bool) or not isinstance(devices, int) or devices < 1):
        raise ValueError(f"devices is {devices!r}; give a whole number, 1 or more, or leave it out to use all")
    most = devices or here.count
    settings.setdefault("threads", max(1, here.cores // most) if here.kind == "cpu" else here.threads)
    base = RunConfig(**settings)
    shares = most * base.accumulation
    if base.global_batch % shares:
        base = base.but(global_batch=shares * max(1, round(base.global_batch / shares)))
    counts = sorted({most, *(2**k for k in range(1, most.bit_length()) if 2**k <= most)})
    ddp = [base.but(strategy="ddp", nproc_per_node=n) for n in counts if not base.local_batch % n]
    rungs = [base, *ddp]
    if base.compiler == "none":  # DataParallel copies the model at every step, which cannot be compiled
        rungs.insert(1, base.but(strategy="data_parallel", nproc_per_node=most))
    return rungs + _beyond(base, ddp[-1], here) if full and ddp else rungs


def _beyond(base, top, here):
    """The rungs above `top`, DDP on all devices."""
    speeds, rungs = device.dtypes(here.kind), []
    fastest = max(HALVES, key=lambda name: speeds.get(HALVES[name], 0))
    if speeds.get(HALVES[fastest], 0) > 1 and top.precision == "fp32":
        rungs.append(top.but(precision=fastest))
        if not top.channels_last:
            rungs.append(top.but(precision=fastest, channels_last=True))
    if top.nproc_per_node > 1 and top.lr_scaling == "none":
        grown = dict(local_batch=base.local_batch, base_batch=base.global_batch, lr_scaling="linear")
        n = top.nproc_per_node
        label = f"{top.label} · batch {base.global_batch * n}, rate ×{n}, warm-up"
        rungs.append(top.but(**grown, lr_warmup_epochs=0.1 * (base.epochs or 1), label=label))
    return rungs


def compare(
    configs=None,
    *,
    model=None,
    dataset=None,
    prediction=None,
    name="",
    timeout=None,
    rounds=1,
    background=False,
    on=None,
    **settings,
):
    """Run the ladder, or the given `configs`, one after the other; return a Comparison.

    The first config is what the others are compared with. Bring your own: `model` is a function
    that makes your model, `dataset` a pair (train, test) of map-style datasets or a function that
    returns one; `settings` are those of RunConfig (batch, epochs, lr, …) and `devices`.

    Args:
        prediction: a dict from labels ("DDP ×2") to the speed-up you expect, or None to go without; it is
            stored with the records before the runs and drawn beside the measurement.
        name: what the comparison is about, for its records.
        timeout: seconds for each run.
        rounds: how often to run all of them. Every second round goes backwards, so that a machine
            that gets slower or faster meanwhile does so for all runs alike; the steps of all rounds
            count together.
        background: return at once with a handle whose `result()` is the Comparison; see `launch`.
        on: what starts the ranks on other machines, such as "slurm:partition=all"; see `run`.

    Returns:
        A Comparison: `show()` draws it, `records` has its runs. Speed-ups are ratios of samples per second.

    Raises:
        TypeError, ValueError: before anything runs.
        RankError: the first run failed, so there is nothing to compare with. A later run that
            fails is shown as failed, and the rest go on.
    """
    if configs is not None and (model is not None or dataset is not None or settings):
        raise TypeError("give either a list of RunConfigs, or model, dataset and settings for the ladder; not both")
    if configs is None:
        settings.update({k: v for k, v in (("model", model), ("data", dataset)) if v is not None})
        if on and settings.get("devices") is None:
            raise TypeError("on= needs devices=, the most to use: those of the other machines are not known here")
        configs = ladder(**settings)
    configs, on = list(configs), on and cluster.engine(on)
    _check(configs, prediction, rounds)
    pairs = [(config, ready(config, on)) for config in configs]
    group = f"{time.strftime('%Y%m%d-%H%M%S')}-{name or 'comparison'}"
    runs = [pair for k in range(rounds) for pair in pairs[:: -1 if k % 2 else 1]]
    work = partial(_one_after_the_other, runs, prediction or {}, group, timeout, on)
    title = Message("the comparison of {label} and {configs} more", label=configs[0].label, configs=len(configs) - 1)
    return in_turn(title, work, [config.label for config, _ in runs], background)


def _one_after_the_other(runs, prediction, group, timeout, on, progress):
    records, broken = [], set()
    for config, machine in runs:
        if config.label in broken:
            continue
        expected = prediction.get(config.label)
        record, error = recorded(config, machine, progress, prediction=expected, group=group, timeout=timeout, on=on)
        if error:
            if not records or not isinstance(error, RankError):
                raise error
            progress.note(f"{config.label}: {error}")
            broken.add(config.label)
        records.append(record)
    return Comparison(records)


def _check(configs, prediction, rounds):
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise ValueError(f"rounds is {rounds!r}; give a whole number, 1 or more")
    if not configs or not all(isinstance(config, RunConfig) for config in configs):
        raise TypeError("a comparison needs a list of RunConfigs")
    labels = [config.label for config in configs]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise ValueError(f"two runs are called {', '.join(twice)}: give them labels of their own")
    for label, factor in (prediction or {}).items():
        if label not in labels:
            raise ValueError(f"there is a prediction for {label!r}, but the runs are {', '.join(labels)}")
        number = isinstance(factor, (int, float)) and not isinstance(factor, bool)
        if factor is not None and (not number or not 0 < factor < math.inf):
            raise ValueError(f"the prediction for {label} is {factor!r}; give a factor such as 1.8")

"""A ladder of runs: launch each, keep its record, set the numbers side by side."""

import math
import time
from functools import partial

from .. import device, xla
from ..config import RunConfig
from ..launcher import progress as live
from ..launcher import turns
from ..launcher.background import start
from ..launcher.launch import RankError, launch, prepare_launcher
from ..records import read, store
from ..training import precision
from ..training.loop import train
from ..xla.loop import train as xla_train
from .comparison import Comparison


def run(config, *, prediction=None, group="", progress=None, timeout=None, background=False) -> dict:
    """Train as `config` says on this machine and return the record, which is also on disk.

    A run that fails or is stopped leaves a record too, and then raises what stopped it:
    ValueError before anything starts, RankError, RankTimeout or KeyboardInterrupt afterwards.
    With `background` it returns at once: see `launch`.
    """
    if config.nnodes > 1:
        raise ValueError(
            f"{config.label} takes {config.nnodes} hosts, and this is one of them; `python -m helpers hosts` prints "
            "what to start on each"
        )
    machine = _machine_for(config)
    work = partial(_recorded, config, machine, prediction, group, timeout)
    if background:
        return start(config.label, work)
    progress = progress or live.Progress([config.label])
    with progress, turns.turn(config.label, progress.queued):
        return work(progress)


def _recorded(config, machine, prediction, group, timeout, progress):
    record = store.new_record(config, machine, group)
    record["prediction"] = prediction
    elsewhere = {"python": xla.python()} if config.compiler == "xla" else {}
    record["advice"] = "" if elsewhere else precision.advice(config.precision, machine.kind)
    progress.advise(record["advice"])
    prepare_launcher(**elsewhere)  # the start of a run is measured too: let it not include importing torch
    threads = config.threads or record["environment"]["machine"]["threads"]
    environment = {"HELPERS_DEVICE": config.device} if config.device else {}
    if elsewhere:
        environment.update(xla.environment())
    began = time.time()
    try:
        with progress.telling(config.label):
            answers = launch(
                xla_train if elsewhere else train, config.processes, config, began,
                timeout=timeout, threads=threads, env=environment, on_event=progress.event, **elsewhere,
            )  # fmt: skip
            record.update(measured=answers[0], status="completed")
    except KeyboardInterrupt:
        record.update(status="stopped", error="stopped by the reader")
        raise
    except Exception as error:
        record["error"] = f"{type(error).__name__}: {error}"
        raise
    finally:
        record["total_s"] = time.time() - began
        store.write(record)
    return record


def ladder(devices=None, full=False, **settings) -> list:
    """The rungs from one device to all: baseline, DataParallel, DDP on 2, 4, … devices.

    `settings` are RunConfig's; the global batch is the same on every rung, so all rungs do the
    same training and only the devices change. With `full` rungs follow that change the training,
    one thing at a time: DDP in the fastest half format here, then with channels last, and DDP with
    a global batch that grows with the devices, the learning rate scaled to it.
    """
    here = device.machine(settings.get("device"))
    if devices is not None and (isinstance(devices, bool) or not isinstance(devices, int) or devices < 1):
        raise ValueError(f"devices is {devices!r}; give a whole number, 1 or more, or leave it out to use all")
    most = devices or here.count
    settings.setdefault("threads", max(1, here.cores // most) if here.kind == "cpu" else here.threads)
    base = RunConfig(**settings)
    if base.global_batch % most:
        base = base.but(global_batch=most * max(1, round(base.global_batch / most)))
    counts = sorted({most, *(2**k for k in range(1, most.bit_length()) if 2**k <= most)})
    ddp = [base.but(strategy="ddp", nproc_per_node=n) for n in counts if not base.global_batch % n]
    rungs = [base, base.but(strategy="data_parallel", nproc_per_node=most), *ddp]
    return rungs + _beyond(base, ddp[-1], here) if full and ddp else rungs


def _beyond(base, top, here):
    """The rungs above `top`, DDP on all devices."""
    formats = device.dtypes(here.kind)
    halves = [level for level in ("O1-bf16", "O1") if formats.get(precision.LEVELS[level].dtype, 0) > 1]
    rungs = []
    if halves and top.precision == "fp32":
        level = max(halves, key=lambda name: formats[precision.LEVELS[name].dtype])
        rungs.append(top.but(precision=level))
        if not top.channels_last:
            rungs.append(top.but(precision=level, channels_last=True))
    if top.nproc_per_node > 1 and top.lr_scaling == "none":
        grown = dict(local_batch=base.local_batch, base_batch=base.global_batch, lr_scaling="linear")
        warm = 0.1 * (base.epochs or 1)
        label = f"{top.label} · batch {base.local_batch * top.nproc_per_node}"
        rungs.append(top.but(**grown, lr_warmup_epochs=warm, label=label))
    return rungs


def compare(
    configs=None, *, model=None, dataset=None, prediction=None, name="", timeout=None, rounds=1, background=False,
    **settings,
):  # fmt: skip
    """Run the ladder, or the given `configs`, one after the other; return a Comparison.

    The first config is what the others are compared with. Bring your own: `model` is a function
    that makes your model, `dataset` a pair (train, test) of map-style datasets or a function that
    returns one; `settings` are those of RunConfig (batch, epochs, lr, …) and `devices`.

    Args:
        prediction: a dict from labels ("DDP ×2") to the speed-up you expect; it is stored with the
            records before the runs and drawn beside the measurement.
        name: what the comparison is about, for its records.
        timeout: seconds for each run.
        rounds: how often to run all of them. Every second round goes backwards, so that a machine
            that gets slower or faster meanwhile does so for all runs alike; the steps of all rounds
            count together.
        background: return at once with a handle whose `result()` is the Comparison; see `launch`.

    Raises:
        TypeError, ValueError: before anything runs.
        RankError: the first run failed, so there is nothing to compare with. A later run that
            fails is shown as failed, and the rest go on.
    """
    if configs is not None and (model is not None or dataset is not None or settings):
        raise TypeError("give either a list of RunConfigs, or model, dataset and settings for the ladder; not both")
    if configs is None:
        settings.update({k: v for k, v in (("model", model), ("data", dataset)) if v is not None})
        configs = ladder(**settings)
    configs = list(configs)
    _check(configs, prediction, rounds)
    group = f"{time.strftime('%Y%m%d-%H%M%S')}-{name or 'comparison'}"
    there_and_back = [config for k in range(rounds) for config in configs[:: -1 if k % 2 else 1]]
    labels = [config.label for config in there_and_back]
    work = partial(_one_after_the_other, there_and_back, prediction or {}, group, timeout)
    title = f"the comparison of {configs[0].label} and {len(configs) - 1} more"
    if background:
        return start(title, work, labels)
    progress = live.Progress(labels)
    with progress, turns.turn(title, progress.queued):
        return work(progress)


def _one_after_the_other(configs, prediction, group, timeout, progress):
    records, broken = [], set()
    for config in configs:
        if config.label in broken:
            continue
        expected = prediction.get(config.label)
        try:
            records.append(run(config, prediction=expected, group=group, progress=progress, timeout=timeout))
        except RankError as error:
            if not records:
                raise
            progress.note(f"{config.label}: {error}")
            broken.add(config.label)
            records.append(next(r for r in reversed(read.read_all(group=group)) if r["label"] == config.label))
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
    for config in configs:
        _machine_for(config)
    for label, factor in (prediction or {}).items():
        if label not in labels:
            raise ValueError(f"there is a prediction for {label!r}, but the runs are {', '.join(labels)}")
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor < math.inf:
            raise ValueError(f"the prediction for {label} is {factor!r}; give a factor such as 1.8")


def _machine_for(config):
    """The machine that `config` can be run on, with its data there. Raises XlaMissing or ValueError."""
    if config.compiler == "xla":
        xla.python()
    machine = config.check_machine()
    _prepare_data(config)
    return machine


def _prepare_data(config):
    """Make the data set here, once, rather than on every rank. Raises ValueError if it is too small."""
    from ..data import sets

    if isinstance(config.data, str):
        sets.ensure(config.data)
    samples = sets.training_samples(config.data)
    if samples is not None and samples < config.global_batch:
        raise ValueError(
            f"a global batch of {config.global_batch} does not fit a training set of {samples} samples; "
            "choose a smaller batch"
        )

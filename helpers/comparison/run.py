"""One training run from its configuration to its record."""

import os
import time
from contextlib import contextmanager
from functools import partial
from importlib.metadata import entry_points

from .. import cluster, device, releases
from ..cluster import torchrun
from ..config import TORCHVISION_MODELS
from ..launcher.background import start
from ..launcher.launch import launch, prepare_launcher
from ..launcher.progress import Progress
from ..records import store
from .alone import alone


def run(config, *, prediction=None, group="", progress=None, timeout=None, background=False, on=None) -> dict:
    """Train as `config` says and return the record, which is also on disk.

    Args:
        config: a RunConfig.
        prediction: the speed-up you expect, kept in the record.
        group: a name that the records of one comparison share.
        timeout: seconds that the run may take (None: as long as it takes).
        background: return at once with a handle of the run; see `launch`.
        on: what starts the ranks on other machines, with options as text: "slurm:partition=all". Its nodes are
            `config.nnodes`.

    Returns:
        A dict: config, environment, status and `measured`, with times in seconds and memory in bytes.

    Raises:
        ValueError: before anything starts.
        RankError, RankTimeout, KeyboardInterrupt: what stopped the run; it leaves a record too.
    """
    on = on and cluster.engine(on)
    work = partial(_completed, config, ready(config, on), on=on, prediction=prediction, group=group, timeout=timeout)
    return in_turn(config.label, work, [config.label], background, progress)


def in_turn(title, work, labels, background, progress=None):
    """Call `work(progress)` when all runs that asked before have ended, also those of other processes on this machine.

    The turn is taken around all that a run measures, not by its launch alone: waiting is no part of a run's time.
    """
    work = partial(alone, title, work)
    if background:
        return start(title, work, labels)
    progress = progress or Progress(labels)
    with progress.turn(title):
        return work(progress)


def ready(config, on=None):
    """The machine that `config` is to run on, with its data prepared there: once, rather than on every rank.

    Where `on` makes the engine it is the CPU here, until the ranks say which they have.

    Raises:
        FileNotFoundError, NotWritable, UnfitTorch, ValueError: the run cannot be made here.
        TypeError: the first sample of the reader's data set is no pair that a batch can be made of.
    """
    from ..data import sets

    if config.model in TORCHVISION_MODELS or config.input_path == "workers":
        releases.need_torchvision("this run")
    if config.nnodes > 1 and not on:
        raise ValueError(
            f"{config.label} takes {config.nnodes} hosts, and this is one of them; give on= (helpers.cluster), or see "
            "`python -m helpers cluster`, which prints what to start on each"
        )
    _training(config)
    store.check_places(config)
    machine = device.machine("cpu") if on else config.check_machine()
    if isinstance(config.data, str):
        sets.ensure(config.data)
    samples = sets.training_samples(config.data)
    if samples is not None and samples < config.global_batch:
        raise ValueError(
            f"a global batch of {config.global_batch} does not fit a training set of {samples} samples; "
            "choose a smaller batch"
        )
    if isinstance(config.data, (tuple, list)):
        _check_sample(config)
    return machine


def _check_sample(config):
    from torch import device

    from ..compiler.copies import without_trace
    from ..data import loaders

    with without_trace(device("cpu")):
        labels = loaders.collate([config.data[0][0]])[1]
    if config.loss is None and not labels.is_floating_point() and labels.shape[1:] == (1,):
        raise ValueError("the data set's labels have shape (1,), and cross entropy needs a class number: int(label)")


def _training(config):
    """(the loop that trains `config`, the option of `launch` that names its interpreter, variables of its ranks).

    Raises:
        FileNotFoundError: the run needs another environment, which is not there.
    """
    environment = {"HELPERS_DEVICE": config.device} if config.device else {}
    if config.compiler == "xla":
        other = other_environment(config.compiler)
        return other.train, {"python": other.python()}, {**environment, **other.environment()}
    from ..training.loop import train

    return train, {}, environment


def other_environment(compiler):
    """The package that trains with a compiler in another Python environment, found by its entry point.

    It has `train`, in the place of `helpers.training.loop.train`, `python()`, the path of the interpreter, and
    `environment()`, variables of the ranks.

    Raises:
        ValueError: no package for this compiler is installed.
    """
    found = list(entry_points(group="helpers.compilers", name=compiler))
    if not found:
        raise ValueError(
            f"compiler {compiler!r} is in a package that is not installed; run `pip install -e .` in the project"
        )
    return found[0].load()


def recorded(config, machine, progress, *, prediction=None, group="", timeout=None, on=None) -> tuple:
    """(the record of a run on the machine that `ready` gave, the exception that ended it or None).

    Raises:
        KeyboardInterrupt: the run was stopped.
    """
    record = store.new_record(config, machine, group)
    record["prediction"] = prediction
    function, python, environment = _training(config)
    _advise(record, config, machine, progress, measure=not (python or on))
    threads, ranks = config.threads or machine.threads, config.processes
    if on:
        function, threads, ranks = partial(_there, function), config.threads, ranks * config.nnodes
        on = partial(on, nodes=config.nnodes)
        record["environment"]["engine"] = cluster.described(on)
    else:
        prepare_launcher(**python)  # the start of a run is measured too, and should not include importing torch
    options = dict(timeout=timeout, threads=threads, env=environment, on=on, **python)
    try:
        with _written(record), progress.showing(config.label):
            record["measured"] = launch(function, ranks, config, time.time(), on_event=progress.event, **options)[0]
            if on:
                record["environment"]["machine"] = record["measured"].pop("machine")
    except Exception as error:
        return record, error
    return record, None


def _there(train, config, began):
    """Train as a rank on another machine, which prepares the data and says what it is."""
    from ..data import sets

    if isinstance(config.data, str) and os.environ["LOCAL_RANK"] == "0":
        sets.ensure(config.data)
    measured = train(config, began)
    return measured and {**measured, "machine": config.check_machine().as_dict()}


def run_as_rank(config, rank, local_rank, progress) -> dict | None:
    """Train as one rank of a launch by torchrun or mpirun; the record on rank 0, which writes it, else None."""
    from ..data import sets
    from ..training.loop import train

    if isinstance(config.data, str) and local_rank == 0:
        sets.ensure(config.data)
    machine = config.check_machine()
    torchrun.die_with_agent()
    record = store.new_record(config, machine, launch=torchrun.agent())
    record["error"] = "not finished: it is still running, or was stopped from outside, as when another rank failed"
    if rank:
        train(config, tell=lambda name, **values: None)
        return None
    store.check_places(config)
    store.write(record)
    _advise(record, config, machine, progress)
    progress.begin(config.label)
    try:
        with _written(record):
            tell = lambda name, **values: progress.event({"event": name, **values})  # noqa: E731
            record["measured"] = train(config, tell=tell)
    finally:
        progress.end(record["status"])
    return record


def _advise(record, config, machine, progress, measure=True):
    """Record what was measured about the run's precision on this device, and show it."""
    from ..training import precision

    record["advice"] = advice = precision.advice(config.precision, machine.kind) if measure else None
    if advice:
        progress.advise(advice if isinstance(advice, str) else precision.advice_text(advice))


def _completed(*arguments, **options):
    record, error = recorded(*arguments, **options)
    if error:
        raise error
    return record


@contextmanager
def _written(record):
    """Write `record` when the block ends, with the time that it took and how it ended."""
    began = time.time()
    try:
        yield
        record.update(status="completed", error=None)
    except KeyboardInterrupt:
        record.update(status="stopped", error="stopped by the reader")
        raise
    except BaseException as error:
        record["error"] = f"{type(error).__name__}: {error}"
        raise
    finally:
        record["total_s"] = time.time() - began
        store.keep(record)

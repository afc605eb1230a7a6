"""The command line: `python -m helpers train|run|hosts|study|migrate|npu|report|records`.

Options are accepted with underscores and with hyphens (`--batch_size`, `--batch-size`), as the
scripts of the source articles spell them.
"""

import argparse
import os
import sys

from .settings import add_options


def main(arguments=None) -> int:
    """Run one command; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = _parser()
    options = parser.parse_args(
        _of_a_script(arguments) if arguments[:1] == ["npu"] else [_hyphens(a) for a in arguments]
    )
    try:
        return options.command(options) or 0
    except KeyboardInterrupt as stop:
        print(f"\nstopped: {stop}" if str(stop) else "\nstopped", file=sys.stderr)
        return 130
    except (ValueError, TypeError, OSError) as error:  # something the caller can put right
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:  # RankError, LauncherError, CheckpointError: it says what happened
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1


def _parser():
    from .config import SETTINGS
    from .hosts import commands as hosts
    from .migrate import cli as migrate
    from .npu import cli as npu
    from .report import cli

    about = "Train on one or more devices and measure it."
    parser = argparse.ArgumentParser(prog="python -m helpers", description=about)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name, function, text):
        sub = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        sub.set_defaults(command=function)
        add_options(sub, name, SETTINGS)
        return sub

    about = "One run. Under torchrun or mpirun this process is one rank; else ranks are launched."
    command("train", _train, about)
    about = "The ladder on this machine: baseline, DataParallel, DDP; leaves records and a report."
    ladder = command("run", _run, about)
    ladder.add_argument("--devices", type=int, help="the most devices to use (default: all)")
    ladder.add_argument("--rounds", type=int, default=2, help="how often to climb, up and down in turn (default: 2)")
    ladder.add_argument("--batch-size", dest="global_batch", type=int, help="the same as --global-batch")
    about = "Record a study again, on this machine; stopped, it goes on where it was."
    study = commands.add_parser("study", help=about, description=about)
    study.set_defaults(command=_study)
    study.add_argument("name", help="one of those that the notebooks show (helpers/comparison/study_configs.py)")
    study.add_argument("--keep", action="store_true", help="also write it to recorded/studies, as part of the kit")
    hosts.add_to(commands)
    migrate.add_to(commands)
    npu.add_to(commands)
    cli.add_to(commands)
    records = commands.add_parser("records", help="list the records on this machine")
    records.set_defaults(command=_records)
    return parser


def train_options(words) -> dict:
    """What `train` followed by these words would set. Exits as argparse does if it would refuse them."""
    options = _parser().parse_args(["train", *map(_hyphens, words)])
    return _settings(options, "log_every")


def _settings(options, *leave_out):
    known = {k: v for k, v in vars(options).items() if v is not None and k not in ("command", *leave_out)}
    return known


def _train(options):
    from .comparison.ladder import run
    from .config import RunConfig
    from .launcher import process_group
    from .launcher import progress as live
    from .records import store

    rank, size, local_rank = process_group.place()
    here = process_group.local_size(size)
    launched = size > 1 or "RANK" in os.environ or "OMPI_COMM_WORLD_RANK" in os.environ
    settings = _settings(options, "log_every")
    if options.log_every < 1:
        raise ValueError(f"--log-every is {options.log_every}; it must be 1 or more")
    log = live.Log(options.log_every)
    devices = settings.setdefault("nproc_per_node", here)
    if launched and devices != here:
        raise ValueError(f"--nproc-per-node is {devices}, but {here} processes were launched; leave it out")
    if launched and size % here:
        raise ValueError(f"{here} of {size} ranks are on this host; start the same number on each")
    settings["nnodes"] = size // here if launched else 1
    settings.setdefault("strategy", "ddp" if devices > 1 or size > 1 else "baseline")
    config = RunConfig(**settings)
    if launched and config.compiler == "xla":
        raise ValueError(
            "--compiler-opt=xla runs in an environment of its own, where these processes are not; let the command "
            f"start them: python -m helpers train --nproc_per_node={devices} --compiler-opt=xla"
        )
    record = _in_this_rank(config, rank, local_rank, log) if launched else run(config, progress=log)
    if record is not None:
        print(_line(record))
        host = f"{record['measured']['hosts'][0]['name']}:" if config.nnodes > 1 else ""
        print(f"record: {host}{store.results_root() / 'runs' / record['run_id']}.json")


def _in_this_rank(config, rank, local_rank, progress):
    """Train as one rank of somebody else's launch; rank 0 keeps the record."""
    import time

    from .data import sets
    from .launcher import elastic
    from .records import store
    from .training import precision
    from .training.loop import train

    if isinstance(config.data, str) and local_rank == 0:
        sets.ensure(config.data)
    machine = config.check_machine()
    elastic.tie_to_agent()
    record = store.new_record(config, machine, launch=elastic.launch())
    record["error"] = "not finished: it is still running, or was stopped from outside, as when another rank failed"
    began = time.time()
    try:
        if rank == 0:
            store.write(record)
            record["advice"] = precision.advice(config.precision, machine.kind)
            progress.advise(record["advice"])
            progress.begin(config.label)
        tell = lambda name, **values: progress.event({"event": name, **values})  # noqa: E731
        record.update(measured=train(config, tell=tell), status="completed", error=None)
    except BaseException as error:
        record["error"] = f"{type(error).__name__}: {error}"
        raise
    finally:
        record["total_s"] = time.time() - began
        if rank == 0:
            store.write(record)
            progress.end(record["status"])
    return record if rank == 0 else None


def _line(record):
    """The result of one run in a line."""
    from .records import read

    values = read.row(record)
    accuracy = ""
    if values["accuracy"] is not None:
        accuracy = f", accuracy {values['accuracy']:.1%} of {values['test_images']} images"
    speed = "too few steps to time"
    if values["step_time_s"]:
        speed = f"{values['step_time_s'] * 1000:.1f} ms a step, {values['images_per_s']:.0f} images/s"
    loss = "nothing left to train" if values["final_loss"] is None else f"loss {values['final_loss']:.4f}"
    return f"{values['label']}: {speed}, {loss}{accuracy}"


def _run(options):
    from . import device, report
    from .comparison import ladder as comparison
    from .paths import results_root

    settings = _settings(options)
    here = device.machine(settings.get("device"))
    print(here.describe(), flush=True)
    if here.kind != "cpu":  # enough work for a device that is thousands of times faster than a core
        settings = {"model": "resnet50", "global_batch": 64 * here.count, **settings}
    if "steps" not in settings:
        settings.setdefault("epochs", 10)
    settings.setdefault("schedule", "cooldown")  # a constant rate leaves the accuracy at the end to chance
    made = comparison.compare(name="ladder", full=True, **settings)
    found = report.of(made)
    paths = found.write_ladder(results_root() / "report")
    print()
    print(found.text())
    print()
    for name, path in paths.items():
        print(f"{name}: {path}")
    return 0 if all(record["status"] == "completed" for record in made.records) else 1


def _study(options):
    from .comparison import studies

    study = studies.record(options.name, options.keep)
    for record in study.records:
        print(_line(record))
    print(f"{study.name}: {study.made}")
    print(f"{len(study.records)} runs: {study.path}")


def _records(options):
    from .paths import results_root
    from .records import read

    records = read.read_all()
    for record in records:
        print(record["run_id"], record["status"], _line(record) if record["status"] == "completed" else record["error"])
    print(f"{len(records)} record(s) in {results_root() / 'runs'}")


def _of_a_script(arguments):
    """`npu`'s arguments, with `--` before those that are a script's own, which spells them as it likes."""
    script = 1
    while arguments[script : script + 1] and arguments[script].startswith("--"):
        script += 1 if "=" in arguments[script] or arguments[script] == "--help" else 2
    return [*arguments[:script], "--", *arguments[script:]]


def _hyphens(argument):
    name, sign, value = argument.partition("=")
    return name.replace("_", "-") + sign + value if argument.startswith("--") else argument

"""The command line: `python -m helpers train|run|cluster|report`.

Options are accepted with underscores and with hyphens (`--batch_size`, `--batch-size`), as the
scripts of the source articles spell them.
"""

import argparse
import multiprocessing.util
import os
import sys

from .settings import add_options, chosen, hyphens, run_command


def main(arguments=None) -> int:
    """Run one command; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = _parser()
    options = parser.parse_args([hyphens(argument) for argument in arguments])
    return run_command(parser.prog, lambda: options.command(options))


def _parser():
    from .cluster.commands import add_to as add_cluster
    from .config import SETTINGS
    from .report.cli import add_to as add_report

    about = "Train on one or more devices and measure it."
    parser = argparse.ArgumentParser(prog="python -m helpers", description=about)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name, function, text):
        sub = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        sub.set_defaults(command=function)
        return sub

    about = "One run. Under torchrun or mpirun this process is one rank; else ranks are launched, with ddp for several."
    train = command("train", _train, about)
    add_options(train, "train", SETTINGS)
    about = "The ladder on this machine (baseline, DataParallel, DDP) and a report; on accelerators of resnet50."
    ladder = command("run", _run, about)
    add_options(ladder, "run", SETTINGS)
    ladder.add_argument("--devices", type=int, help="the most devices to use (default: all)")
    ladder.add_argument("--rounds", type=int, default=2, help="how often to climb, up and down in turn (default: 2)")
    ladder.add_argument("--batch-size", dest="global_batch", type=int, help="the same as --global-batch")
    for sub in (train, ladder):
        words = "start the ranks on other machines: slurm, with options as in slurm:partition=all,time=30"
        sub.add_argument("--on", help=words)
    add_cluster(commands)
    add_report(commands)
    return parser


def _train(options):
    from .cluster.log import Log
    from .comparison.run import run, run_as_rank
    from .config import SETTINGS, RunConfig
    from .group import process_group
    from .paths import results_root
    from .records.read import in_a_line

    rank, size, local_rank = process_group.place()
    here = process_group.local_size(size)
    launched = size > 1 or _is_rank()
    if options.log_every < 1:
        raise ValueError(f"--log-every is {options.log_every}; it must be 1 or more")
    settings = {"nproc_per_node": here, "nnodes": size // here if launched else 1, **chosen(options, SETTINGS)}
    devices = settings["nproc_per_node"]
    if launched and (devices != here or size % here):
        raise ValueError(f"--nproc-per-node is {devices}, and {here} of {size} ranks were started on this host")
    config = RunConfig(**{"strategy": "ddp" if devices * settings["nnodes"] > 1 else "baseline", **settings})
    if launched and config.compiler == "xla":
        command = f"python -m helpers train --nproc_per_node={devices} --compiler-opt=xla"
        raise ValueError(f"--compiler-opt=xla needs the XLA environment; let the command start the ranks: {command}")
    log = Log(options.log_every)
    record = run_as_rank(config, rank, local_rank, log) if launched else run(config, progress=log, on=options.on)
    if record is not None:
        path = results_root() / "runs" / f"{record['run_id']}.json"
        host = f"{record['measured']['hosts'][0]['name']}:" if config.nnodes > 1 else ""
        print(in_a_line(record), *[f"record: {host}{path}"] * path.exists(), sep="\n")


def _run(options):
    from . import device, releases, report
    from .comparison.ladder import compare
    from .config import SETTINGS
    from .paths import results_root

    settings = chosen(options, SETTINGS)
    here = device.machine(settings.get("device"))
    if not options.on and here.kind == "cpu" and "device" not in settings and (idle := releases.idle_gpus()):
        raise ValueError(idle)
    where = f"on {options.on}" if options.on else here.describe()
    print(f"torch {releases.version_of('torch')} of {sys.prefix}; {where}", flush=True)
    if not options.on and here.kind != "cpu":  # enough work for a device that is thousands of times faster than a core
        settings = {"model": "resnet50", "global_batch": 64 * here.count, **settings}
    if "steps" not in settings:
        settings.setdefault("epochs", 10)
    settings.setdefault("schedule", "cooldown")  # a constant rate leaves the accuracy at the end to chance
    made = compare(name="ladder", full=True, devices=options.devices, rounds=options.rounds, on=options.on, **settings)
    found = report.everything(runs=made.runs)
    print("", found.text(), "", sep="\n", flush=True)
    paths = found.write_ladder(results_root() / "report", made)
    print(*(f"{name}: {path}" for name, path in paths.items()), sep="\n")
    return 0 if all(record["status"] == "completed" for record in made.records) else 1


def _is_rank():
    from .group import rendezvous

    return "RANK" in os.environ or "OMPI_COMM_WORLD_RANK" in os.environ or rendezvous.is_task()


if __name__ == "__main__":
    status = main()
    if not _is_rank():
        raise SystemExit(status)
    # In a rank that torchrun or mpirun started, threads of torch.distributed can outlive the interpreter and abort
    # its shutdown ("terminate called without an active exception") after all the work has been done.
    multiprocessing.util._run_finalizers()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)

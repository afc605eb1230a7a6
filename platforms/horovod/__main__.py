"""Run a script that was written for Horovod, as it is: `import horovod…` gives `platforms.horovod…`.

    python -m platforms.horovod -np 2 train.py --epochs 3     start two ranks here by torchrun, as horovodrun -np 2 does
    torchrun --nproc-per-node 2 -m platforms.horovod train.py       one rank of torchrun
    mpirun -np 2 python -m platforms.horovod train.py               one rank of mpirun
    python -m platforms.horovod train.py                            a world of one

`-m package.module` in place of the script works as with python itself. The options are horovodrun's; any other option
of horovodrun is refused.
"""

import argparse
import importlib.util
import os
import runpy
import sys

from . import imports, start

USAGE = "python -m platforms.horovod [-np N] [options] script.py [arguments…]   or   … -m module [arguments…]"
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK")  # a launcher sets one of them in its processes
IGNORED = "accepted: gloo moves the data, there is no cache, nothing uses ssh"
LEAST = "when a rank is lost, start all again: scripts with hvd.elastic.run go on from their last commit"
HERE = "and ranks on each; this machine only (mpirun: several)"


class Refused(ValueError):
    """The command line is wrong; nothing was started."""


def _number(text):
    if not text.replace(".", "", 1).isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}; give a number, 0 or more")
    return f"{float(text):g}"


def _megabytes(text):
    return str(int(float(_number(text)) * 2**20))


def _count(text):
    most = max(64, 8 * (os.cpu_count() or 1))
    if not text.isdigit() or not 1 <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r}; give a number of ranks from 1 to {most}, which it can start")
    return int(text)


VARIABLES = {  # option -> (how its value is read, variables of the ranks that it sets); True: it takes no value
    "--start-timeout": (_number, "HOROVOD_START_TIMEOUT"),
    "--gloo-timeout-seconds": (_number, "HOROVOD_GLOO_TIMEOUT_SECONDS"),
    "--stall-check-warning-time-seconds": (_number, "HOROVOD_STALL_CHECK_TIME_SECONDS"),
    "--stall-check-shutdown-time-seconds": (_number, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"),
    "--no-stall-check": (True, "HOROVOD_STALL_CHECK_DISABLE"),
    "--cycle-time-ms": (_number, "HOROVOD_CYCLE_TIME"),
    "--fusion-threshold-mb": (_megabytes, "HOROVOD_FUSION_THRESHOLD"),
    "--timeline-filename": (os.path.abspath, "HOROVOD_TIMELINE"),
    "--timeline-mark-cycles": (True, "HOROVOD_TIMELINE_MARK_CYCLES"),
    "--log-level": (str, "HOROVOD_LOG_LEVEL"),
    "--network-interface": (str, "GLOO_SOCKET_IFNAME NCCL_SOCKET_IFNAME"),
}


OPTIONS = {  # option -> what argparse wants to know of it
    "-np --num-proc": dict(type=_count, metavar="N", help="ranks to start"),
    "--min-np --min-num-proc": dict(type=_count, metavar="N", help=LEAST),
    "--max-np --max-num-proc": dict(type=_count, metavar="N", help="limits -np, as no rank joins later"),
    "-H --hosts --host": dict(metavar="HOST:N,…", help=f"hosts {HERE}"),
    "--hostfile -hostfile": dict(metavar="FILE", help=f"a file with hosts {HERE}"),
    "--output-filename": dict(metavar="DIR", help="also write what the ranks print to files there"),
    "--verbose": dict(action="store_true", help="show the command and torchrun's messages"),
    "--check-build": dict(action="store_true", help="show what this can do, and end"),
    "--gloo --disable-cache": dict(action="store_true", help=IGNORED),
    "-p --ssh-port": dict(metavar="PORT", help=IGNORED),
    "-m": dict(dest="module", nargs=argparse.REMAINDER, help=argparse.SUPPRESS),
    "command": dict(nargs=argparse.REMAINDER, help=argparse.SUPPRESS),
}


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Refused(f"{message} (--help lists the options; those of the script come after its name)")


def _parser():
    shape = argparse.RawDescriptionHelpFormatter
    parser = _Parser(usage=USAGE, description=__doc__, formatter_class=shape, allow_abbrev=False)
    for option, (kind, names) in VARIABLES.items():
        how = {"action": "store_const", "const": "1"} if kind is True else {"type": kind, "metavar": "VALUE"}
        parser.add_argument(option, dest=names, help=f"sets {names}", **how)
    for options, how in OPTIONS.items():
        parser.add_argument(*options.split(), **how)
    return parser


def parse(arguments):
    """(the options, number of ranks or None, is it a module, [script or module, arguments…]) of a command line."""
    given = _parser().parse_args(arguments)
    if given.check_build:
        return given, None, False, []
    count, module = _ranks(given), given.module is not None
    command = given.module if module else given.command
    if not module and command and os.path.basename(command[0]).rstrip(".0123456789") == "python":
        command = command[1:]  # horovodrun -np 2 python train.py
        module, command = command[:1] == ["-m"], command[command[:1] == ["-m"] :]
    if not command:
        raise Refused("which script?")
    if module and not _is_module(command[0]):
        raise Refused(f"there is no module {command[0]!r}")
    if not module and not any(map(os.path.isfile, (command[0], os.path.join(command[0], "__main__.py")))):
        raise Refused(f"there is no script {command[0]!r} in {os.getcwd()}")
    if count and any(name in os.environ for name in RANKS):
        raise Refused("this process is a rank of a launcher already; give the number of ranks there, not by -np")
    return given, count, module, command


def _ranks(given):
    """The number of ranks, or None."""
    hosts = given.hosts.split(",") if given.hosts else _hostfile(given.hostfile) if given.hostfile else ()
    slots = _slots(hosts, given.num_proc or "N") if hosts else None
    most = given.max_np or given.num_proc or slots
    count = given.num_proc or most
    if slots and count > slots:
        raise Refused(f"-np is {count}, but there is room for {slots}; give localhost:{count}")
    if count and count > most:
        raise Refused(f"-np is {count}, but --max-np is {most}")
    if given.min_np and given.min_np > (most or 0):
        raise Refused(f"--min-np is {given.min_np}, but {most or 0} ranks are started; give -np {given.min_np} or more")
    return count


def _hostfile(path):
    """host:slots of the lines `host slots=N` of a file."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.partition("#")[0].split() for line in file]
    except OSError as error:
        raise Refused(f"--hostfile is {path!r}: {error.strerror}") from None
    return [":".join([line[0], *(word[6:] for word in line[1:] if word[:6] == "slots=")]) for line in lines if line]


def _slots(hosts, count):
    """The number of ranks in `hosts`, all of them on this machine."""
    try:
        own, elsewhere = start.slots(hosts)
    except ValueError as error:
        raise Refused(f"-H or --hostfile: {error}") from None
    if elsewhere:
        raise Refused(
            f"{elsewhere[0]} is another machine; ranks on several machines are started by mpirun: "
            f"mpirun -np {count} -H {','.join(hosts)} python -m platforms.horovod script.py"
        )
    if not own:
        raise Refused("no ranks in -H or --hostfile; give a host and its number of ranks, as in localhost:2")
    return own


def _is_module(name):
    try:
        return importlib.util.find_spec(name.partition(".")[0])  # finding a submodule would import its package
    except (ImportError, ValueError):
        return None


def check_build():
    """What horovodrun --check-build shows, of this package."""
    from .core import nccl_built

    frameworks = ["torch", "tensorflow", "keras", "mxnet", "caffe"]
    there = {"Frameworks:": {name: importlib.util.find_spec(name) for name in frameworks}}
    there["Tensor operations:"] = {"gloo": True, "nccl": nccl_built()}
    lines = [[title, *(f"    [{'X' if of[name] else ' '}] {name}" for name in of)] for title, of in there.items()]
    return "\n".join(sum(lines, []))


def run(module, target, arguments):
    """Be one rank: run the script as `__main__` in this process; returns its global names."""
    start.tie_to_starter()
    imports.install()
    sys.excepthook = _without_our_frames(sys.excepthook)
    sys.argv = [target, *arguments]
    try:
        if module:
            return runpy.run_module(target, run_name="__main__", alter_sys=True)
        if os.path.isfile(target):
            sys.path[0] = os.path.dirname(os.path.abspath(target))  # as python does for a script
        return runpy.run_path(target, run_name="__main__")
    except SystemExit as end:
        job = sys.modules.get("platforms.horovod.core.job")  # an exit handler cannot see the status
        if job:
            job.exits(end.code)
        raise


def _without_our_frames(hook):
    """An excepthook whose traceback begins in the script."""

    def shown(kind, error, traceback):
        first = traceback
        while first and first.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
            first = first.tb_next
        hook(kind, error.with_traceback(first or traceback), first or traceback)

    return shown


def main(arguments):
    try:
        given, count, module, command = parse(arguments)
    except Refused as error:
        start.say(f"{error}\nusage: {USAGE}")
        return 2
    if given.check_build:
        print(check_build())
        return 0
    for _, names in VARIABLES.values():
        if getattr(given, names) is not None:
            os.environ.update(dict.fromkeys(names.split(), getattr(given, names)))
    if count is None:
        run(module, command[0], command[1:])
        return 0
    restarts = start.RESTARTS if given.min_np else 0
    return start.start(["-m"] * module + command, count, given.verbose, restarts, given.output_filename)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

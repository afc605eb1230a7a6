"""Run a script that was written for Horovod, as it is: `import horovod…` gives `platforms.horovod…`.

    python -m platforms.horovod -np 2 train.py --epochs 3     start two ranks here by torchrun, as horovodrun -np 2 does
    torchrun --nproc-per-node 2 -m platforms.horovod train.py       one rank of torchrun
    mpirun -np 2 python -m platforms.horovod train.py               one rank of mpirun
    python -m platforms.horovod train.py                            a world of one

`-m package.module` in place of the script works as with python itself. Other options are horovodrun's:

    -H localhost:2, --hosts, --hostfile FILE   hosts and ranks on each; this machine only (mpirun: several)
    --min-np 1                   when a rank is lost, start all again: scripts with `hvd.elastic.run` go on from their
                                 last commit; --max-np N limits -np, as no rank joins later
    --output-filename DIR        also write what the ranks print to files there
    --network-interface eth0     of gloo and NCCL
    --fusion-threshold-mb, --cycle-time-ms, --start-timeout, --gloo-timeout-seconds, --log-level,
    --stall-check-warning-time-seconds, --stall-check-shutdown-time-seconds, --no-stall-check,
    --timeline-filename, --timeline-mark-cycles       the environment variables of these names
    --verbose                    show the command and torchrun's messages
    --check-build                show what this can do, and end
    --gloo, --disable-cache, -p PORT, --ssh-port      accepted: gloo moves the data, there is no cache, nothing uses ssh

Any other option of horovodrun is refused.
"""

import importlib.util
import os
import runpy
import sys

from . import imports, start

USAGE = "usage: python -m platforms.horovod [-np N] [options] script.py [arguments…]   or   … -m module [arguments…]"
SAME = {"--num-proc": "-np", "--max-num-proc": "--max-np", "--min-num-proc": "--min-np"}
SAME.update({"--hosts": "-H", "--host": "-H", "-hostfile": "--hostfile"})  # other spelling -> ours
NUMBERS = {  # option with a number -> environment variable of the ranks, and what the number is multiplied by
    "--start-timeout": ("HOROVOD_START_TIMEOUT", 1),
    "--gloo-timeout-seconds": ("HOROVOD_GLOO_TIMEOUT_SECONDS", 1),
    "--stall-check-warning-time-seconds": ("HOROVOD_STALL_CHECK_TIME_SECONDS", 1),
    "--stall-check-shutdown-time-seconds": ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 1),
    "--cycle-time-ms": ("HOROVOD_CYCLE_TIME", 1),
    "--fusion-threshold-mb": ("HOROVOD_FUSION_THRESHOLD", 2**20),
}
TEXTS = {
    "--timeline-filename": ("HOROVOD_TIMELINE",),
    "--log-level": ("HOROVOD_LOG_LEVEL",),
    "--network-interface": ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
}
FLAGS = {"--timeline-mark-cycles": "HOROVOD_TIMELINE_MARK_CYCLES", "--no-stall-check": "HOROVOD_STALL_CHECK_DISABLE"}
VALUED = {"-np", "--min-np", "--max-np", "-H", "--hostfile", "--output-filename", "-p", "--ssh-port", *NUMBERS, *TEXTS}
PLAIN = {"--gloo", "--verbose", "--disable-cache", "--check-build", *FLAGS}
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK")  # a launcher sets one of them in its processes


class Refused(ValueError):
    """The command line is wrong; nothing was started."""


def parse(arguments):
    """Read a command line.

    Returns:
        (options given, variables of the ranks, number of ranks or None, is it a module, script or module, arguments).
    """
    rest, given = list(arguments), {}
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        option, _, value = rest.pop(0).partition("=")
        option = SAME.get(option, option)
        if option in ("-h", "--help"):
            print(USAGE + "\n\n" + __doc__)
            raise SystemExit(0)
        if option in VALUED:
            value = value or (rest.pop(0) if rest else "")
            if not value:
                raise Refused(f"{option} needs a value")
        elif option not in PLAIN:
            raise Refused(
                f"there is no option {option} here (--help lists those that there are); options of the script come "
                "after its name"
            )
        given[option] = value
    if "--check-build" in given:
        return given, {}, None, False, "", []
    variables, count = _environment(given), _ranks(given)
    if rest and os.path.basename(rest[0]).rstrip(".0123456789") == "python":  # horovodrun -np 2 python train.py
        rest.pop(0)
    module = rest[:1] == ["-m"]
    target, rest = rest[module : module + 1], rest[module + 1 :]
    if not target:
        raise Refused("which script?")
    (_check_module if module else _check_script)(target[0])
    if count and any(name in os.environ for name in RANKS):
        raise Refused("this process is a rank of a launcher already; give the number of ranks there, not by -np")
    return given, variables, count, module, target[0], rest


def _environment(given):
    """The variables of the ranks for the options in `given`."""
    variables = {FLAGS[option]: "1" for option in given if option in FLAGS}
    for option, names in TEXTS.items():
        if option in given:
            value = os.path.abspath(given[option]) if option == "--timeline-filename" else given[option]
            variables.update(dict.fromkeys(names, value))
    for option, (name, factor) in NUMBERS.items():
        try:
            value = float(given.get(option, 0))
        except ValueError:
            value = -1
        if value < 0:
            raise Refused(f"{option} is {given[option]!r}; give a number, 0 or more")
        if option in given:
            variables[name] = f"{value * factor:g}" if factor == 1 else str(int(value * factor))
    return variables


def _ranks(given):
    """The number of ranks, or None."""
    hosts = given["-H"].split(",") if "-H" in given else _hostfile(given["--hostfile"]) if "--hostfile" in given else ()
    slots = _slots(hosts, given.get("-np", "N")) if hosts else None
    most = next((_count(given[option], option) for option in ("--max-np", "-np") if option in given), slots)
    count = _count(given["-np"]) if "-np" in given else most
    if slots and count > slots:
        raise Refused(f"-np is {count}, but there is room for {slots}; give localhost:{count}")
    if "-np" in given and count > most:
        raise Refused(f"-np is {count}, but --max-np is {most}")
    least = _count(given["--min-np"], "--min-np") if "--min-np" in given else None
    if least and not least <= (most or 0):
        raise Refused(f"--min-np is {least}, but {most or 0} ranks are started; give -np {least} or more")
    return count


def _hostfile(path):
    """host:slots of the lines `host slots=N` of a file."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.partition("#")[0].split() for line in file]
    except OSError as error:
        raise Refused(f"--hostfile is {path!r}: {error.strerror}") from None
    return [
        ":".join([line[0], *(word[6:] for word in line[1:] if word.startswith("slots="))]) for line in lines if line
    ]


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


def _count(text, option="-np"):
    most = max(64, 8 * (os.cpu_count() or 1))
    if not text.isdigit() or not 1 <= int(text) <= most:
        raise Refused(f"{option} is {text!r}; give a number of ranks from 1 to {most}, which this machine can start")
    return int(text)


def _check_script(path):
    if not os.path.isfile(path) and not os.path.isfile(os.path.join(path, "__main__.py")):
        raise Refused(f"there is no script {path!r} in {os.getcwd()}")


def _check_module(name):
    try:
        found = importlib.util.find_spec(name.partition(".")[0])  # finding a submodule would import its package
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise Refused(f"there is no module {name!r}")


def check_build():
    """What horovodrun --check-build shows, of this package."""
    from . import core

    def marked(names, there):
        return [f"    [{'X' if there(name) else ' '}] {name}" for name in names]

    frameworks = marked(["torch", "tensorflow", "keras", "mxnet", "caffe"], importlib.util.find_spec)
    operations = marked(["gloo", "nccl"], lambda name: core.gloo_built() if name == "gloo" else core.nccl_built())
    return "\n".join(["Frameworks:", *frameworks, "Tensor operations:", *operations])


def run(module, target, arguments):
    """Be one rank: run the script as `__main__` in this process; returns its global names."""
    start.tie_to_starter()
    replaced = imports.install()
    if replaced and os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")) == "0":
        start.say(f"{replaced} is installed too; it is not used")
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
        given, variables, count, module, target, rest = parse(arguments)
    except Refused as error:
        start.say(f"{error}\n{USAGE}")
        return 2
    if "--check-build" in given:
        print(check_build())
        return 0
    os.environ.update(variables)
    if count is None:
        run(module, target, rest)
        return 0
    restarts, output = start.RESTARTS if "--min-np" in given else 0, given.get("--output-filename")
    return start.start([*(["-m"] if module else []), target, *rest], count, "--verbose" in given, restarts, output)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

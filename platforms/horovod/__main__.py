"""Run a script that was written for Horovod, as it is: `import horovod…` gives `platforms.horovod…`.

    python -m platforms.horovod -np 2 train.py --epochs 3     start two ranks here, as horovodrun -np 2 does
    torchrun --nproc-per-node 2 -m platforms.horovod train.py       one rank of torchrun
    mpirun -np 2 python -m platforms.horovod train.py               one rank of mpirun
    python -m platforms.horovod train.py                            a world of one

`-m package.module` in place of the script works as with python itself. Other options are horovodrun's:

    -H localhost:2, --hosts      hosts and ranks on each; only this machine (mpirun and torchrun start ranks on several)
    --gloo, -p PORT, --ssh-port  accepted; gloo moves the data in any case, and nothing here uses ssh
    --min-np 1                   go on while so many ranks are left, in scripts with `hvd.elastic.run`
    --max-np 4                   without a discovery script the same as -np 4: none joins later
    --host-discovery-script ./hosts.sh  a command that prints host:slots; ranks join and leave as it says (discovery.py)
    --verbose                    show the command and the process of each rank
    --start-timeout, --gloo-timeout-seconds, --stall-check-warning-time-seconds, --stall-check-shutdown-time-seconds,
    --timeline-filename, --timeline-mark-cycles, --no-stall-check       the environment variables of these names
"""

import importlib.util
import os
import runpy
import sys

from . import discovery, imports, start

USAGE = "usage: python -m platforms.horovod [-np N] [options] script.py [arguments…]   or   … -m module [arguments…]"
SAME = {"--num-proc": "-np", "--max-num-proc": "--max-np", "--min-num-proc": "--min-np"}
SAME.update({"--hosts": "-H", "--host": "-H"})  # other spelling -> ours
VARIABLES = {  # option -> environment variable of the ranks
    "--start-timeout": "HOROVOD_START_TIMEOUT",
    "--gloo-timeout-seconds": "HOROVOD_GLOO_TIMEOUT_SECONDS",
    "--stall-check-warning-time-seconds": "HOROVOD_STALL_CHECK_TIME_SECONDS",
    "--stall-check-shutdown-time-seconds": "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
    "--timeline-filename": "HOROVOD_TIMELINE",
}
FLAGS = {"--timeline-mark-cycles": "HOROVOD_TIMELINE_MARK_CYCLES", "--no-stall-check": "HOROVOD_STALL_CHECK_DISABLE"}
VALUED = {"-np", "--min-np", "--max-np", "--host-discovery-script", "-H", "-p", "--ssh-port", *VARIABLES}
PLAIN = {"--gloo", "--verbose", *FLAGS}
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK")  # a launcher sets one of them in its processes


class Refused(ValueError):
    """The command line is wrong; nothing was started."""


def parse(arguments):
    """Read a command line.

    Returns:
        (number of ranks or None, is it a module, script or module, its arguments, variables of the ranks, options of
        `start.start`).
    """
    rest, given, environment = list(arguments), {}, {}
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        option, _, value = rest.pop(0).partition("=")
        if option in ("-h", "--help"):
            print(USAGE + "\n\n" + __doc__)
            raise SystemExit(0)
        option = SAME.get(option, option)
        if option in VALUED:
            value = value or (rest.pop(0) if rest else "")
        elif option not in PLAIN:
            raise Refused(f"there is no option {option}; options of the script come after its name")
        given[option] = value
        if option in VARIABLES or option in FLAGS:
            environment[VARIABLES.get(option) or FLAGS[option]] = _value(option, value) if option in VARIABLES else "1"
    count, options = _ranks(given)
    if rest and os.path.basename(rest[0]).rstrip(".0123456789") == "python":  # horovodrun -np 2 python train.py
        rest.pop(0)
    module = rest[:1] == ["-m"]
    target, rest = rest[module : module + 1], rest[module + 1 :]
    if not target:
        raise Refused("which script?")
    (_check_module if module else _check_script)(target[0])
    if count and any(name in os.environ for name in RANKS):
        raise Refused("this process is a rank of a launcher already; give the number of ranks there, not by -np")
    return count, module, target[0], rest, environment, {"verbose": "--verbose" in given, **options}


def _ranks(given):
    """(number of ranks or None, options of `start.start`) of the options in `given`."""
    slots = _slots(given["-H"], given.get("-np", "N")) if "-H" in given else None
    most = next((_count(given[option], option) for option in ("--max-np", "-np") if option in given), slots)
    count = _count(given["-np"]) if "-np" in given else most
    if slots and count > slots:
        raise Refused(f"-np is {count}, but -H has room for {slots}; give localhost:{count}")
    if "-np" in given and count > most:
        raise Refused(f"-np is {count}, but --max-np is {most}")
    if "--host-discovery-script" in given and (most is None or slots):
        raise Refused("a discovery script needs --max-np, the largest number of ranks, and no -H")
    least = _count(given["--min-np"], "--min-np") if "--min-np" in given else None
    if least and not least <= (most or 0):
        raise Refused(f"--min-np is {least}, but {most or 0} ranks are started; give -np {least} or more")
    if "--host-discovery-script" not in given:
        return count, {"least": least}
    script = given["--host-discovery-script"]
    if not (os.path.isfile(script) and os.access(script, os.X_OK)):
        raise Refused(f"there is no discovery script {script!r} that can be run; is it there, and did you chmod +x it?")
    return count, {"elastic": discovery.Discovery(os.path.abspath(script), least or count, most)}


def _value(option, text):
    try:
        wrong = not text or option != "--timeline-filename" and float(text) < 0
    except ValueError:
        wrong = True
    if wrong:
        raise Refused(f"{option} is {text!r}; give a {'file' if 'file' in option else 'number of seconds'}")
    return os.path.abspath(text) if option == "--timeline-filename" else text


def _slots(hosts, count):
    """The number of ranks in `-H host:ranks,…`, all of them on this machine."""
    try:
        own, elsewhere = start.slots(hosts.split(","))
    except ValueError as error:
        raise Refused(f"-H is {hosts!r}: {error}") from None
    if elsewhere:
        raise Refused(
            f"-H names {elsewhere[0]}; ranks on several machines are started by mpirun: "
            f"mpirun -np {count} -H {hosts} python -m platforms.horovod script.py"
        )
    if not own:
        raise Refused(f"-H is {hosts!r}; give a host and its number of ranks, as in localhost:2")
    return own


def _count(text, option="-np"):
    try:
        count = int(text)
    except ValueError:
        raise Refused(f"{option} is {text!r}; give a number of ranks") from None
    most = max(64, 8 * (os.cpu_count() or 1))
    if not 1 <= count <= most:
        raise Refused(f"{option} is {count}; from 1 to {most} ranks can be started on this machine")
    return count


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
        count, module, target, rest, environment, options = parse(arguments)
    except Refused as error:
        start.say(f"{error}\n{USAGE}")
        return 2
    os.environ.update(environment)
    if count is None:
        run(module, target, rest)
        return 0
    if options.get("elastic"):
        try:
            count = min(count, options["elastic"].first())
        except TimeoutError as error:
            start.say(error)
            return 1
    own = ["-m"] if module else []
    return start.start([sys.executable, "-m", "platforms.horovod", *own, target, *rest], count, **options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

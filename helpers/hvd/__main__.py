"""Run a script that was written for Horovod, as it is: `import horovod…` gives `helpers.hvd…`.

    python -m helpers.hvd -np 2 train.py --epochs 3     start two ranks here, as horovodrun -np 2 does
    torchrun --nproc-per-node 2 -m helpers.hvd train.py       one rank of torchrun
    mpirun -np 2 python -m helpers.hvd train.py               one rank of mpirun
    python -m helpers.hvd train.py                            a world of one

`-m package.module` in place of the script works as with python itself.
"""

import importlib.util
import os
import runpy
import sys

from . import imports, start

USAGE = "usage: python -m helpers.hvd [-np N] script.py [arguments…]   or   … -m module [arguments…]"
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK")  # a launcher sets one of them in its processes


class Refused(ValueError):
    """The command line is wrong; nothing was started."""


def parse(arguments):
    """(number of ranks or None, is it a module, script or module, its arguments)."""
    rest, count = list(arguments), None
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        option, _, value = rest.pop(0).partition("=")
        if option in ("-h", "--help"):
            print(USAGE + "\n\n" + __doc__)
            raise SystemExit(0)
        if option not in ("-np", "--num-proc"):
            raise Refused(f"there is no option {option}; options of the script come after its name")
        count = _count(value or (rest.pop(0) if rest else ""))
    if rest and os.path.basename(rest[0]).rstrip(".0123456789") == "python":  # horovodrun -np 2 python train.py
        rest.pop(0)
    module = rest[:1] == ["-m"]
    target, rest = rest[module : module + 1], rest[module + 1 :]
    if not target:
        raise Refused("which script?")
    (_check_module if module else _check_script)(target[0])
    if count and any(name in os.environ for name in RANKS):
        raise Refused("this process is a rank of a launcher already; give the number of ranks there, not by -np")
    return count, module, target[0], rest


def _count(text):
    try:
        count = int(text)
    except ValueError:
        raise Refused(f"-np is {text!r}; give a number of ranks") from None
    most = max(64, 8 * (os.cpu_count() or 1))
    if not 1 <= count <= most:
        raise Refused(f"-np is {count}; from 1 to {most} ranks can be started on this machine")
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
        print(f"helpers.hvd: {replaced} is installed too; it is not used", file=sys.stderr, flush=True)
    sys.excepthook = _without_our_frames(sys.excepthook)
    sys.argv = [target, *arguments]
    if module:
        return runpy.run_module(target, run_name="__main__", alter_sys=True)
    if os.path.isfile(target):
        sys.path[0] = os.path.dirname(os.path.abspath(target))  # as python does for a script
    return runpy.run_path(target, run_name="__main__")


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
        count, module, target, rest = parse(arguments)
    except Refused as error:
        print(f"helpers.hvd: {error}\n{USAGE}", file=sys.stderr)
        return 2
    if count is None:
        run(module, target, rest)
        return 0
    own = ["-m"] if module else []
    return start.start([sys.executable, "-m", "helpers.hvd", *own, target, *rest], count)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

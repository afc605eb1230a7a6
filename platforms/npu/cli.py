"""`python -m platforms.npu main.py …`: a script on emulated NPUs (or the real ones), from a shell."""

import argparse
import os
import sys

from helpers.settings import run_command

from .build import library
from .loading import environment, real_torch_npu


def main(arguments=None) -> int:
    """Run the command line; returns the exit status, or becomes the script."""
    command = argparse.ArgumentParser(
        prog="python -m platforms.npu",
        description="Run a script on Ascend NPUs: the real ones, or cards emulated on the CPU where there are none.",
        usage="python -m platforms.npu [--devices N] [--memory MIB] main.py ARGUMENT…",
        allow_abbrev=False,
    )
    command.add_argument("--devices", type=int, help="cards of the emulated host, 1 to 8 (default: 8)")
    command.add_argument("--memory", type=int, metavar="MIB", help="memory of each emulated card (default: 32768)")
    command.add_argument("script", nargs=argparse.REMAINDER, help="what Python is to run: main.py …, or -m module …")
    options = command.parse_args(_script_apart(sys.argv[1:] if arguments is None else list(arguments)))
    return run_command(command.prog, lambda: _run(options))


def _script_apart(arguments):
    """`arguments` with `--` before those that are the script's own, which spells them as it likes."""
    script = 0
    while arguments[script : script + 1] and arguments[script].startswith("--"):
        script += 1 if "=" in arguments[script] or arguments[script] == "--help" else 2
    return [*arguments[:script], "--", *arguments[script:]]


def _run(options):
    script = options.script[1:] if options.script[:1] == ["--"] else options.script
    if not script:
        raise ValueError("which script? python -m platforms.npu main.py …")
    if not script[0].startswith("-") and not os.path.isfile(script[0]):
        raise FileNotFoundError(f"there is no script {script[0]}")
    made = environment(options.devices, options.memory)
    if not real_torch_npu():
        library()
    sys.stdout.flush()
    # In this process's place, so that signals, the terminal and the exit status are the script's own.
    os.execve(sys.executable, [sys.executable, *script], made)

"""`python -m helpers npu main.py …`: a script on emulated NPUs (or the real ones), from a shell."""

import argparse
import os
import sys

from .loading import real_torch_npu
from .script import environment


def add_to(commands) -> None:
    """Add the command `npu` to the sub-commands of a parser."""
    about = "Run a script on Ascend NPUs: the real ones, or cards emulated on the CPU where there are none."
    usage = "python -m helpers npu [--devices N] [--memory MIB] main.py ARGUMENT…"
    command = commands.add_parser("npu", help=about, description=about, usage=usage, allow_abbrev=False)
    command.add_argument("--devices", type=int, help="cards of the emulated host, 1 to 8 (default: 8)")
    command.add_argument("--memory", type=int, metavar="MIB", help="memory of each emulated card (default: 32768)")
    command.add_argument("script", nargs=argparse.REMAINDER, help="what Python is to run: main.py …, or -m module …")
    command.set_defaults(command=_run)


def _run(options):
    script = options.script[1:] if options.script[:1] == ["--"] else options.script
    if not script:
        raise ValueError("which script? python -m helpers npu main.py …")
    if not script[0].startswith("-") and not os.path.isfile(script[0]):
        raise FileNotFoundError(f"there is no script {script[0]}")
    made = environment(options.devices, options.memory)
    if not real_torch_npu():
        from .build import library

        library(log=lambda line: print(line, file=sys.stderr))
    sys.stdout.flush()
    # In this process's place, so that signals, the terminal and the exit status are the script's own.
    os.execve(sys.executable, [sys.executable, *script], made)

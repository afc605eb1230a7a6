"""Hands-on help for training faster on more than one device.

Importing this package is quick: what needs torch is loaded when it is first used. In a notebook
the import also starts the fork server in the background, so that the first launch need not wait.
"""

import functools
import importlib
import sys

from . import device
from .launcher.display import in_notebook
from .launcher.errors import translate_tracebacks
from .launcher.group import World, distributed
from .launcher.language import local
from .launcher.launch import (
    LauncherError,
    RankError,
    RankOutOfMemory,
    RankTimeout,
    RunStopped,
    emit,
    launch,
    prepare_launcher,
)
from .launcher.progress import panel

_LATER = {
    "RunConfig": "config",
    "compare": "comparison.ladder",
    "form": "comparison.form",
    "run": "comparison.run",
    "ladder": "comparison.ladder",
    "ranks": "launcher.kept.handle",
    "optimize": "compiler",
    "compiler_stats": "compiler",
    "timeline": "profile.timeline",
    "memory": "profile.memory",
}
__all__ = [
    "LauncherError",
    "RankError",
    "RankOutOfMemory",
    "RankTimeout",
    "RunStopped",
    "World",
    "choose_devices",
    "distributed",
    "emit",
    "launch",
    "machine",
    "panel",
    "prepare_launcher",
    *_LATER,
]


class Machine(device.Machine):
    """The same in the reader's language, which helpers.device does not know: it stands below the launcher."""

    def describe(self) -> str:
        """One line for people."""
        return local(super().describe())


@functools.wraps(device.machine)
def machine(kind=None):
    return Machine(**vars(device.machine(kind)))


@functools.wraps(device.choose)
def choose_devices(at_least=2):
    return Machine(**vars(device.choose(at_least)))


def __getattr__(name):
    if name not in _LATER:
        raise AttributeError(f"module 'helpers' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_LATER[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *_LATER})


def _start_early():
    from .launcher import client

    try:
        client.server()
    except Exception:  # a launch will say what is wrong; an import must not fail over it
        pass


def _add_magic():
    """Let cells begin with %%ranks; the code for it is imported by the first that does."""

    def ranks(line, cell):
        """Run the cell on every kept rank, or on some, as in %%ranks 0,2; see helpers.launcher.kept.magic."""
        from .launcher.kept import magic

        magic.run(line, cell)

    sys.modules["IPython"].get_ipython().register_magic_function(ranks, "cell", "ranks")


if in_notebook():
    _start_early()
    _add_magic()
    translate_tracebacks(sys.modules["IPython"].get_ipython())

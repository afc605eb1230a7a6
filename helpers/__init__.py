"""Hands-on help for training faster on more than one device.

Importing this package is quick: each name is loaded when it is first used. In a notebook
the import also starts the fork server in the background, so that the first launch need not wait.
"""

import importlib
import logging
import sys
from contextlib import suppress

_NAMES = {  # module: its public names
    "comparison.form": ("form",),
    "comparison.ladder": ("compare", "ladder"),
    "comparison.run": ("run",),
    "compiler": ("compiler_stats", "optimize"),
    "config": ("RunConfig",),
    "device": ("choose_devices", "machine"),
    "launcher.errors": ("LauncherError", "RankError", "RankOutOfMemory", "RankTimeout", "RunStopped"),
    "group.process_group": ("World", "distributed"),
    "persistent.ranks": ("ranks",),
    "launcher.launch": ("launch", "prepare_launcher"),
    "launcher.rank": ("emit",),
    "profile.memory": ("memory",),
    "profile.timeline": ("timeline",),
}
# Without a GPU torch may be its CUDA build without triton (tools/bootstrap.sh), of which counting operations warns.
logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = list(_HOMES)


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module 'helpers' has no attribute {name!r}")
    module = importlib.import_module(f".{_HOMES[name]}", __name__)
    value = module.choose if name == "choose_devices" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__})


def _set_up(shell):
    """Start the fork server early, and let cells begin with %%ranks, whose code is imported by the first that does."""
    from .launcher import client

    def ranks(line, cell):
        """Run the cell on every persistent rank, or on some, as in %%ranks 0,2."""
        from .persistent import magic

        magic.run(line, cell)

    shell.register_magic_function(ranks, "cell", "ranks")
    with suppress(Exception):  # a launch will say what is wrong; an import must not fail over it
        client.server()


if (_ipython := sys.modules.get("IPython")) and hasattr(_ipython.get_ipython(), "kernel"):
    _set_up(_ipython.get_ipython())

"""What is around the notebook's functions: arguments, folder, environment, import path, edited modules.

Fresh ranks start with it; persistent ones follow what has changed since their last call.
"""

import importlib
import os
import sys

from . import context, interpreter

_reloads = {}  # name of a module of the reader -> (its spec, how often the notebook has reloaded it, time of its file)


def arguments() -> list:
    """sys.argv, without what the kernel itself was started with."""
    argv = list(sys.argv)
    if context.in_notebook():
        end = len(sys.orig_argv)
        own = next(n for n in range(len(argv) - 1, -1, -1) if argv[1 : n + 1] == sys.orig_argv[end - n :])
        del argv[1 : own + 1]
    return argv


def now() -> dict:
    """For persistent ranks, with each call."""
    return {
        "argv": arguments(),
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "path": list(sys.path),
        "modules": _editions(),
    }


def _editions():
    """{name: what changes when the notebook reloads it} of the modules that are not installed.

    A reload gives a module a new spec. %autoreload may only replace functions in it, and notes the time of its file.
    """
    shell = context.in_notebook() and sys.modules["IPython"].get_ipython()
    autoreload = shell and shell.magics_manager.registry.get("AutoreloadMagics")
    times = autoreload._reloader.modules_mtimes if autoreload else {}
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        if name not in _reloads:
            file = getattr(spec, "has_location", False) and name.partition(".")[0] != "helpers" and spec.origin
            readers = file and os.path.exists(file) and not interpreter.is_installed(file)
            _reloads[name] = (spec, 0, os.stat(file).st_mtime) if readers else None
        elif _reloads[name] and _reloads[name][0] is not spec:
            _reloads[name] = (spec, _reloads[name][1] + 1, _reloads[name][2])
    return {name: (known[1], times.get(name, known[2])) for name, known in _reloads.items() if known}


def follow(old, new):
    """In a persistent rank: take on what has changed in the notebook; what the rank itself has changed stays."""
    for name in old["environment"].keys() | new["environment"].keys():
        value = new["environment"].get(name)
        if value != old["environment"].get(name):
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    if new["argv"] != old["argv"]:
        sys.argv[:] = new["argv"]
    if new["folder"] != old["folder"]:
        os.chdir(new["folder"])
    sys.path += [entry for entry in new["path"] if entry not in old["path"]]
    for name, edition in new["modules"].items():
        if name in sys.modules and edition != old["modules"].get(name, edition):
            _reload(sys.modules[name])


def _reload(module):
    """Reload it and, where there is IPython, give the functions and classes that exist their new code."""
    try:
        from IPython.extensions.autoreload import superreload
    except ImportError:
        superreload = importlib.reload
    superreload(module)

"""`import horovod.torch` gives `platforms.horovod.torch`: an import hook, so that a script stays as it is.

Each module of Horovod is an alias: `horovod.torch is platforms.horovod.torch`. A process that a script starts with the
`multiprocessing` methods spawn or forkserver imports the script again; it finds the package in `shims` on its path,
and that package sets the hook there.
"""

import importlib
import importlib.abc
import importlib.util
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHIMS = os.path.join(ROOT, "platforms", "horovod", "shims")
ELSEWHERE = {  # modules of Horovod with no module of the same name here
    "horovod.common": "platforms.horovod.core",
    "horovod.common.basics": "platforms.horovod.core",
    "horovod.common.exceptions": "platforms.horovod.core",
    "horovod.common.process_sets": "platforms.horovod.core",
    "horovod.runner": "platforms.horovod.start",
    "horovod.tensorflow.keras": "platforms.horovod.keras",
    "horovod.tensorflow.keras.callbacks": "platforms.horovod.keras.callbacks",
}
STARTED = "the ranks are started from outside: python -m platforms.horovod -np N script.py, torchrun or mpirun"
REFUSED = {
    "horovod.spark": "there is no Spark here; " + STARTED,
    "horovod.ray": "there is no Ray here; " + STARTED,
}


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves every name below `horovod`."""

    def find_spec(self, name, path=None, target=None):
        if name != "horovod" and not name.startswith("horovod."):
            return None
        for refused, why in REFUSED.items():
            if (name + ".").startswith(refused + "."):
                raise ModuleNotFoundError(f"{name} has no counterpart in platforms.horovod: {why}", name=name)
        ours = counterpart(name)
        if ours is None:
            raise ModuleNotFoundError(f"{name} has no counterpart in platforms.horovod", name=name)
        return importlib.util.spec_from_loader(name, self, is_package=True)

    def create_module(self, spec):
        module = importlib.import_module(counterpart(spec.name))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module):
        module.__spec__ = module.__spec__.loader_state  # importlib has just put the alias's in its place


def counterpart(name):
    """The name of our module for one of Horovod's; None if there is none."""
    for ours in ("platforms.horovod" + name[len("horovod") :], ELSEWHERE.get(name)):
        try:
            if ours and importlib.util.find_spec(ours):
                return ours
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("platforms.horovod"):
                raise  # the framework itself is missing: let Python say so
    return None


def install():
    """Set the hook, here and in the processes that this one starts; returns what it replaces.

    Returns:
        The installed horovod that is not used now, in words, or None.

    Raises:
        RuntimeError: an installed horovod has been imported already.
    """
    if any(isinstance(finder, Finder) for finder in sys.meta_path):
        return None
    if hasattr(sys.modules.get("horovod"), "__file__") and SHIMS not in (sys.modules["horovod"].__file__ or ""):
        raise RuntimeError("horovod has been imported already; set the hook before, in a new process")
    replaced = _installed()
    sys.meta_path.insert(0, Finder())
    others = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p not in ("", SHIMS, ROOT)]
    os.environ["PYTHONPATH"] = os.pathsep.join([SHIMS, *others, ROOT])
    sys.path.insert(1, SHIMS)  # multiprocessing hands this list on, in place of PYTHONPATH
    return replaced


def _installed():
    from importlib import metadata

    try:
        return f"horovod {metadata.version('horovod')}"
    except metadata.PackageNotFoundError:
        pass
    found = importlib.util.find_spec("horovod")
    if found is None or SHIMS in str(found.origin):
        return None
    return f"horovod in {os.path.dirname(found.origin or '') or found.name}"

"""`import horovod.torch` gives `platforms.horovod.torch`: an import hook, so that a script stays as it is.

Each module of Horovod is an alias: `horovod.torch is platforms.horovod.torch`. A process that a script starts with the
`multiprocessing` methods spawn or forkserver imports the script again; it finds the package in `shims` on its path,
and that package sets the hook there. The names of Alibaba's Perseus are aliases, too: `import perseus` (the package
beside this one) sets the hook for them.
"""

import importlib
import importlib.abc
import importlib.util
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHIMS = os.path.join(ROOT, "platforms", "horovod", "shims")
ALIASES = {  # a name and all names below it -> ours; the longest counts
    "horovod": "platforms.horovod",
    "horovod.common": "platforms.horovod.core",
    "horovod.common.basics": "platforms.horovod.core",
    "horovod.common.exceptions": "platforms.horovod.core",
    "horovod.common.process_sets": "platforms.horovod.core",
    "horovod.runner": "platforms.horovod.start",
    "horovod.tensorflow.keras": "platforms.horovod.keras",
    "horovod.tensorflow.util": "platforms.horovod.tensorflow.functions",
    "perseus.torch.horovod": "platforms.horovod.torch",
    "perseus.torch.distributed": "platforms.horovod.ddp",
    "perseus.torch.nn.parallel": "platforms.horovod.ddp",
    "perseus.tensorflow.horovod": "platforms.horovod.tensorflow",
    "perseus.tensorflow.horovod.keras": "platforms.horovod.keras",
    "perseus.mxnet": "platforms.horovod.mxnet",
    "perseus.caffe": "platforms.horovod.caffe",
}
FOLDERS = {"perseus.torch", "perseus.torch.nn", "perseus.tensorflow"}  # modules with nothing but modules in them
STARTED = "the ranks are started from outside: python -m platforms.horovod -np N script.py, torchrun or mpirun"
REFUSED = {"horovod.spark": "there is no Spark here; " + STARTED, "horovod.ray": "there is no Ray here; " + STARTED}


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves every name below those in `served`."""

    served = set()  # {"horovod", "perseus."}; the package `perseus` itself is found as any other

    def find_spec(self, name, path=None, target=None):
        if not any(name == each or name.startswith(each.rstrip(".") + ".") for each in self.served):
            return None
        for refused, why in REFUSED.items():
            if (name + ".").startswith(refused + "."):
                raise ModuleNotFoundError(f"{name} has no counterpart in platforms.horovod: {why}", name=name)
        if name not in FOLDERS and counterpart(name) is None:
            raise ModuleNotFoundError(f"{name} has no counterpart in platforms.horovod", name=name)
        return importlib.util.spec_from_loader(name, self, is_package=True)

    def create_module(self, spec):
        if spec.name in FOLDERS:
            return None
        module = importlib.import_module(counterpart(spec.name))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module):
        if module.__spec__.loader_state:  # importlib has just put the alias's in its place
            module.__spec__ = module.__spec__.loader_state
        else:
            module.__getattr__ = modules_of(module.__name__)


def counterpart(name):
    """The name of our module for one of Horovod's or Perseus's; None if there is none."""
    known = max((alias for alias in ALIASES if (name + ".").startswith(alias + ".")), key=len, default=None)
    ours = known and ALIASES[known] + name[len(known) :]
    try:
        return ours if ours and importlib.util.find_spec(ours) else None
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("platforms.horovod"):
            raise  # the framework itself is missing: let Python say so
        return None


def modules_of(package):
    """A `__getattr__` for a package: its modules are imported when they are first used, as `perseus.torch.nn` is."""

    def attribute(name):
        if not name.startswith("__"):
            try:
                return importlib.import_module(f"{package}.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"{package}.{name}":
                    raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return attribute


def serve(names):
    """Set the hook for `names` in this process."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
    Finder.served.add(names)


def install():
    """Set the hook for `horovod`, here and in the processes that this one starts."""
    if "horovod" in Finder.served:
        return
    if SHIMS not in (getattr(sys.modules.get("horovod"), "__file__", None) or SHIMS):
        raise RuntimeError("horovod has been imported already; set the hook before, in a new process")
    serve("horovod")
    others = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p not in ("", SHIMS, ROOT)]
    os.environ["PYTHONPATH"] = os.pathsep.join([SHIMS, *others, ROOT])
    sys.path.insert(1, SHIMS)  # multiprocessing hands this list on, in place of PYTHONPATH

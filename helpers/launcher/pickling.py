"""Pickles between the notebook and its ranks, and `__main__` of a rank, where pickle looks up the classes of cells.

A function or class of a cell is sent by value, with what it refers to. On the rank all of them share one `__main__`, in
which each has the name that it has in the notebook: what a rank pickles itself, for other ranks, a file or a worker,
names them there. What ranks return leaves the notebook's variables and classes as they are.
"""

import builtins
import functools
import importlib
import io
import multiprocessing.context
import re
import sys
import weakref
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from operator import attrgetter
from types import CodeType, FunctionType, ModuleType

import cloudpickle

IPYTHON = {"system", "getoutput", "run_line_magic", "run_cell_magic"}  # what `!` and `%` become
_whole = weakref.WeakSet()  # classes that this process has made, or has loaded before
_sent = set()  # in a rank: the names in __main__ that are from the notebook
cells = {}  # in a persistent rank: the names of `%%ranks` cells


class Unsendable(TypeError):
    """Something that no process can send another; the message says what to do instead."""


def dumps(value, to_ranks=False) -> bytes:
    """`value` as a pickle for the notebook, or for ranks."""
    buffer = io.BytesIO()
    Pickler(buffer, to_ranks=to_ranks).dump(value)
    return buffer.getvalue()


def can_be_sent(value) -> bool:
    """Whether `value` can be pickled for ranks."""
    try:
        dumps(value, to_ranks=True)
    except Exception:  # pickling runs the reader's own __reduce__: anything can come
        return False
    return True


class Pickler(cloudpickle.Pickler):
    """cloudpickle that keeps the files of functions, and with `to_ranks` their names in `__main__`."""

    def __init__(self, *args, to_ranks=False, **options):
        super().__init__(*args, **options)
        self.main = vars(sys.modules["__main__"]) if to_ranks else None
        if to_ranks:
            self.globals_ref[id(self.main)] = _Namespace()

    def reducer_override(self, obj):
        kind = type(obj)
        if kind is CodeType:
            if "get_ipython" in obj.co_names and IPYTHON.intersection(obj.co_names):
                raise Unsendable(
                    f"{obj.co_name} has a !command or a %magic, which only the notebook knows: use "
                    'subprocess.run("command", shell=True), or what Python has for it'
                )
            # cloudpickle 3.1.3 drops the name of the file.
            return _code, (obj.co_filename, *self.dispatch_table[CodeType](obj))
        if isinstance(obj, BaseException) and kind.__reduce__ is BaseException.__reduce__:
            return _exception, (kind, obj.args), vars(obj)
        if kind is functools._lru_cache_wrapper and obj.__module__ == "__main__":  # pickle has only its name
            return _cached, (obj.cache_parameters(), obj.__wrapped__)
        if isinstance(obj, ModuleType) and kind is not ModuleType and sys.modules.get(obj.__name__) is obj:
            return importlib.import_module, (obj.__name__,)  # such as torch.backends.cudnn
        _refuse(obj, kind)
        reduced = super().reducer_override(obj)
        if reduced is NotImplemented or obj.__module__ != "__main__":
            return reduced
        make, args, state, _, _, settle = reduced
        if isinstance(obj, type):
            _whole.add(obj)
            if make is cloudpickle.cloudpickle._make_skeleton_class and "__slots__" in vars(obj):
                args[3]["__slots__"] = (
                    obj.__slots__
                )  # cloudpickle's copy has a __dict__, whose instances do not fit here
        elif self.main is not None:
            state[1]["__globals__"].pop("get_ipython", None)  # for `try: get_ipython() except NameError:`
        names, lost = (self._names(obj), self._lost(obj)) if self.main is not None else ({}, [])
        return make, args, (state, settle, obj.__qualname__, names, lost), None, None, _settle

    def _names(self, obj):
        """What `__main__` has to hold with `obj`: the name that pickle gives it, and those in annotations."""
        found = set()
        with suppress(AttributeError):  # of a function, a wrapper has the name, or it was deleted
            if attrgetter(obj.__qualname__)(sys.modules["__main__"]) is obj:
                found = {obj.__qualname__.partition(".")[0]}
        with suppress(Exception):  # annotations may be code
            texts = " ".join(text for text in obj.__annotations__.values() if isinstance(text, str))
            found = {*found, *(name for name in re.findall(r"\w+", texts) if _is_type(self.main.get(name)))}
        return {name: getattr(sys.modules["__main__"], name) for name in found}

    def _lost(self, obj):
        """Names that a function refers to and the notebook does not have, or no longer."""
        if not isinstance(obj, FunctionType) or obj.__globals__ is not self.main:
            return []
        names = cloudpickle.cloudpickle._extract_code_globals(obj.__code__)
        return [name for name in names if name not in self.main]


def _refuse(obj, kind):
    """Raise Unsendable for what pickle would refuse in other words, or only where it is loaded."""
    if kind.__name__ == "DistributedDataParallel":
        raise Unsendable("a DistributedDataParallel model belongs to its process group: return its model.module")
    if kind is not FunctionType:
        return
    if hasattr(obj, "_torchdynamo_orig_callable"):
        raise Unsendable(
            f"{obj.__name__} is compiled by torch.compile, whose result stays in its process: leave out the decorator, "
            f"and call torch.compile({obj.__name__}) in the function that runs on the ranks"
        )


def _is_type(value):
    return isinstance(value, (type, ModuleType)) or type(value).__module__ in ("typing", "types")


class _Namespace:
    """In a pickle for ranks: what is `__main__` there."""

    def __reduce__(self):
        return _namespace, ()


def _namespace():
    return vars(sys.modules["__main__"])


def _settle(obj, state):
    """Give a function or class its state and, in a rank, its name."""
    state, settle, qualname, names, lost = state
    if isinstance(obj, type):
        if obj in _whole and not names:  # what comes back has been sent, and may have changed here since
            return
        _whole.add(obj)
        obj.__qualname__ = qualname  # which cloudpickle drops, and pickle needs for a class inside of a class
    main = _namespace()
    _sent.update(names, state[1].get("__globals__", ()))
    settle(obj, state)
    main.update(names)
    for name in _sent.intersection(lost):
        main.pop(name, None)


def _code(filename, make, args):
    return make(*args).replace(co_filename=filename)


def _exception(kind, args):
    """Without __init__, which may take other arguments than it hands on."""
    error = kind.__new__(kind, *args)
    error.args = args
    return error


def _cached(parameters, fn):
    return functools.lru_cache(**parameters)(fn)


# -- on the rank -------------------------------------------------------------------------------------


class Main(ModuleType):
    """`__main__` of a rank and of the processes that it starts."""

    def __init__(self):
        super().__init__("__main__")
        self.__builtins__ = builtins

    def __getattr__(self, name):
        if name in cells:
            return cells[name]
        raise AttributeError(f"{name!r} is not in {self!r}")

    def __repr__(self):  # pickle shows it after the name that it does not find
        return (
            "<module '__main__' of a rank, which holds only what the functions sent to it refer to: mention the name "
            "in the function, a line with the name alone will do>"
        )


def set_up_main():
    """Make a new `__main__`, which processes that this one starts by other means than a fork get a copy of."""
    sys.modules["__main__"] = Main()
    for kind in (multiprocessing.context.SpawnProcess, multiprocessing.context.ForkServerProcess):
        ForkingPickler.register(kind, _with_main)


def _with_main(process):
    make, args, state, *_ = process.__reduce_ex__(4)
    return _process, (_MainCopy(), make, args, state)  # loaded in this order


def _process(_, make, args, state):
    process = make(*args)
    vars(process).update(state)
    return process


class _MainCopy:
    """The functions and classes of `__main__`, in the pickle of a process."""

    def __reduce__(self):
        defined = [one for one in _namespace().values() if isinstance(one, (type, FunctionType))]
        defined = [one for one in (*defined, *cells.values()) if getattr(one, "__module__", None) == "__main__"]
        try:
            return _fill_main, (dumps(defined, to_ranks=True),)
        except Exception:
            return _fill_main, (dumps(list(filter(can_be_sent, defined)), to_ranks=True),)


def _fill_main(data):
    set_up_main()
    cloudpickle.loads(data)

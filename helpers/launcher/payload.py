"""The reader's function on its way to the ranks: what goes along, and what is said of what cannot be sent."""

import inspect
import linecache

from .pickling import Unsendable, can_be_sent


def packed_call(fn, args, kwargs, pickled):
    """The call, pickled by `pickled(call)`; raises TypeError, naming what cannot be sent."""
    try:
        return pickled((fn, args, kwargs), to_ranks=True)
    except Unsendable as error:
        raise TypeError(f"{getattr(fn, '__name__', fn)}() cannot be sent to the ranks: {error}") from None
    except Exception as error:  # pickling runs the reader's own __reduce__: anything can come
        raise TypeError(_blame(fn, args, kwargs, error)) from None


def cell_sources():
    """The lines of code that exist in no file, so that a rank's traceback can show them: entries of linecache.

    IPython registers cells without a modification time, which keeps linecache from dropping
    them; its entries can carry an extra name that is of no use elsewhere.
    """
    return {
        name: (entry[0], None, list(entry[2]), entry[3])
        for name, entry in list(linecache.cache.items())
        if len(entry) >= 4 and entry[1] is None
    }


def _blame(fn, args, kwargs, error):
    """Say which variable or argument could not be sent."""
    name = getattr(fn, "__name__", repr(fn))
    used = [(f"argument {i}", value) for i, value in enumerate(args, 1)]
    used += [(f"argument {key}=", value) for key, value in kwargs.items()]
    used += [(f"variable {key!r}", value) for key, value in _used_variables(fn).items()]
    culprits = [f"{what} ({type(value).__name__})" for what, value in used if not can_be_sent(value)]
    return (
        f"{name}() cannot be sent to the ranks: {', '.join(culprits) or 'something it refers to'} cannot be pickled "
        f"({error}). Create it inside {name}(), or pass what is needed to create it."
    )


def _used_variables(fn):
    """Variables that `fn`, and the functions it calls, take from around them."""
    found, seen, todo = {}, set(), [fn]
    while todo:
        function = inspect.unwrap(todo.pop())
        if function in seen or not inspect.isfunction(function):
            continue
        seen.add(function)
        try:
            around = inspect.getclosurevars(function)
        except ValueError:  # a closure cell that is still empty
            continue
        for name, value in {**around.globals, **around.nonlocals}.items():
            if inspect.isfunction(value):
                todo.append(value)
            else:
                found[name] = value
    return found

"""The engines that `on=` takes, found by name: `helpers.cluster.slurm` and others."""

import importlib
import inspect
from functools import partial

ENGINES = ("slurm",)


def engines() -> dict:
    """{name: why it cannot be used here, "" if it can} of the engines that `on=` takes."""
    return {name: _module(name).why_not() for name in ENGINES}


def engine(on, **options):
    """What makes the engine of each run.

    Args:
        on: a name of ENGINES, perhaps with options as text ("slurm:partition=all,time=30"), or a class of engines.
        options: those of the engine's class.

    Raises:
        ValueError, TypeError: there is no such engine here, or it has no such option.
    """
    make = on
    if isinstance(on, str):
        name, _, text = on.partition(":")
        if name not in ENGINES:
            known = " or ".join(map(repr, ENGINES))
            raise ValueError(f"on is {on!r}; give {known}, or leave it out to run on this machine")
        make = _module(name).Engine
        pairs = [pair.partition("=") for pair in text.split(",") if pair]
        options = {**{key: int(value) if value.isdecimal() else value for key, _, value in pairs}, **options}
    if not callable(make):
        raise TypeError(f"on is {on!r}; give the name of an engine, or a class of engines")
    known = inspect.signature(make).parameters
    if unknown := [name for name in options if name not in known]:
        raise TypeError(f"on={on!r} has no option {', '.join(unknown)}; it has {', '.join(known)}")
    return partial(make, **options)


def described(make) -> dict:
    """What `engine` has made, for a record: its name and options."""
    return {"name": make.func.__module__.rpartition(".")[2], **make.keywords}


def taken(on, fn, kwargs) -> tuple:
    """(what makes the engine, what is left for the function) of the keyword arguments of `launch(fn, …, on=on)`."""
    make = engine(on)
    names = inspect.signature(make).parameters.keys() & kwargs.keys()
    try:
        clash = sorted(names & inspect.signature(fn).parameters.keys())
    except (TypeError, ValueError):  # some built-in functions have none
        clash = []
    if clash:
        name = getattr(fn, "__name__", "the function")
        raise TypeError(
            f"{clash[0]}= is an option of on={on!r} and an argument of {name}, too: give it to {name} by its place, "
            f'or to the engine as on="slurm:{clash[0]}=…"'
        )
    return partial(make, **{k: kwargs[k] for k in names}), {k: v for k, v in kwargs.items() if k not in names}


def _module(name):
    return importlib.import_module(f"helpers.cluster.{name}")  # only when it is asked for

"""How a setting of a run is described: what it may be, what it is for, and what changes when it is changed.

Each field of `helpers.config.RunConfig` carries such a description. Checks, options of the command line, differences
between runs, what a checkpoint must agree on and the form's controls are made from it: a new field needs no other list.
"""

import argparse
import difflib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import lru_cache
from math import isfinite
from typing import Any, get_args

# Settings that are no option of `run`, since it decides them itself. Its ladder begins with a baseline, stays on one
# machine, varies strategy and devices at the same global batch, and saves nothing.
NO_OPTION = """strategy nproc_per_node nnodes local_batch sync_batch_norm shard offload label checkpoint_dir
checkpoint_every resume""".split()
# Further names of options, as the scripts of the source articles spell them.
ALSO = {"local_batch": "batch-size", "precision": "amp-level", "compiler": "compiler-opt", "num_workers": "workers"}
FROM_1, FROM_0, ABOVE_0, BELOW_1 = "1 or more", "0 or more", "above 0", "0 or more and below 1"
RANGES = {FROM_1: lambda n: n >= 1, FROM_0: lambda n: n >= 0, ABOVE_0: lambda n: n > 0, BELOW_1: lambda n: 0 <= n < 1}


class ConfigError(ValueError):
    """A configuration that cannot be; `fields` names the settings to change, which a form marks."""

    def __init__(self, fields, message):
        super().__init__(message)
        self.fields = tuple(fields)

    def __reduce__(self):
        return ConfigError, (self.fields, str(self))


@dataclass(frozen=True)
class Setting:
    """The description of one field."""

    name: str
    type: type  # bool, int, float or str; object if only the reader's own function will do
    default: Any  # where it is None, the value may be
    help: str = ""  # what it is, for people
    table: dict = field(default_factory=dict)  # {allowed name: a summary, or a row with `summary`, perhaps `aliases`}
    noun: str = ""  # what sentences and the form call it
    range: str = ""  # of a number, one of RANGES (by default FROM_1 of a whole number, else FROM_0)
    own: tuple[Callable, str] | None = None  # whether the reader's own object will do; what that is, in words
    bare: Any = None  # the value of its option when that is given without one
    changes_learning: bool = False  # whether another value trains another model, by more than the rounding of sums
    changes_timing: bool = False  # whether another value changes the time of a step on the same machine
    spreads: bool = False  # whether it decides how the work of an update is divided among devices
    in_checkpoint: bool | str = False  # whether a checkpoint has to agree in it, or in this property of RunConfig

    @property
    def choices(self) -> dict:
        """{allowed value: what it means in a few words}, for names."""
        return {name: getattr(row, "summary", row) for name, row in self.table.items()}

    @property
    def aliases(self) -> dict:
        """{another spelling of a choice: that choice}."""
        return {alias: name for name, row in self.table.items() for alias in getattr(row, "aliases", ())}

    def checked(self, value):
        """The value as it is recorded. Raises ConfigError, which says what is allowed."""
        allowed = "" if value is None and self.default is None else self._refusal(value)
        if allowed:
            called = f"{self.name} (--{ALSO[self.name]})" if self.name in ALSO else self.name
            raise ConfigError([self.name], f"{called} is {value!r}; it must be {allowed}")
        return self.aliases.get(value, value) if isinstance(value, str) else value

    def _refusal(self, value):
        """What a value has to be, if this one, which is not None, is not that; else ""."""
        own, words = self.own or (None, "")
        if own and not (self.table and isinstance(value, str)):
            return "" if own(value) else "a name, or " * bool(self.table) + words
        if self.table:
            names = [*self.table, *self.aliases]
            near = difflib.get_close_matches(str(value), names, n=1)
            hint = f". Did you mean {near[0]!r}?" if near else ""
            others = ["None"] * (self.default is None) + [words] * bool(words)
            return "" if value in names else f"one of {', '.join([*map(repr, names), *others])}{hint}"
        if self.type in (int, float):
            bounds = self.range or (FROM_1 if self.type is int else FROM_0)
            right = isinstance(value, (int, self.type)) and not isinstance(value, bool)
            kind = "a whole number" if self.type is int else "a finite number"
            return "" if right and isfinite(value) and RANGES[bounds](value) else f"{kind}, {bounds}"
        if self.type is bool:
            return "" if isinstance(value, bool) else "True or False"
        return "" if isinstance(value, (str, os.PathLike)) else "text"


def setting(default, help, **more):
    """A field of a dataclass with its Setting; see there for what can be given. The annotation says its type."""
    return field(default=default, metadata={"help": help, **more})


@lru_cache
def settings_of(config_class) -> dict:
    """{name: Setting} of a dataclass, in the order of its fields."""
    found = {}
    for one in fields(config_class):
        kinds = [kind for kind in (*get_args(one.type), one.type) if kind in (bool, int, float, str)]
        told = {"noun": one.name.replace("_", " "), **one.metadata}
        found[one.name] = Setting(one.name, [*kinds, object][0], one.default, **told)
    return found


def add_options(parser, command, settings) -> None:
    """Add the options of `train` or `run` for all settings that the command leaves to the reader; None if not given."""
    for name, one in settings.items():
        if one.type is object or (command == "run" and name in NO_OPTION):
            continue
        flags = [f"--{flag}" for flag in (ALSO.get(name), name.replace("_", "-")) if flag]
        words = one.help if one.default in (None, "") else f"{one.help} (default: {one.default})"
        more = {} if one.bare is None else {"nargs": "?", "const": one.bare}
        if one.table:
            more["metavar"] = "{" + ",".join((*one.table, *one.aliases)) + "}"
        kind = {"action": argparse.BooleanOptionalAction} if one.type is bool else {"type": one.type}
        parser.add_argument(*flags, dest=name, help=words.replace("%", "%%"), default=None, **kind, **more)
    if command == "train":
        parser.add_argument("--log-every", type=int, default=10, help="steps between lines of the log (default: 10)")


def hyphens(argument) -> str:
    """An argument of the command line with its option's name as it was declared: `--batch_size` is `--batch-size`."""
    name, sign, value = argument.partition("=")
    return name.replace("_", "-") + sign + value if argument.startswith("--") else argument


def run_command(prog, call) -> int:
    """Call a command of the command line; returns the exit status, and prints an error that it raises."""
    try:
        return call() or 0
    except KeyboardInterrupt as stop:
        print("\nstopped" + (f": {stop}" if str(stop) else ""), file=sys.stderr)
        return 130
    except (ValueError, TypeError, OSError, RuntimeError) as error:  # RankError, …: each says what happened
        print(f"{prog}: {error}", file=sys.stderr)
        return 1 if isinstance(error, RuntimeError) else 2  # 2: the caller can put it right


def chosen(options, settings) -> dict:
    """The settings among parsed options that were given."""
    return {name: value for name, value in vars(options).items() if name in settings and value is not None}


def differing(one, other, settings) -> list:
    """The Settings in which two configurations differ, as records have them: dicts, the older ones with fewer keys."""
    return [s for s in settings.values() if one.get(s.name, s.default) != other.get(s.name, s.default)]

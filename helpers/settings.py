"""How a setting of a run is described: what it may be, what it is for, and what changes when it is changed.

Each field of `helpers.config.RunConfig` carries such a description. Checks, the options of the command line,
differences between two runs, what a checkpoint must agree on and the form's controls are all made from it, so that a
new field needs no other list.
"""

import argparse
import difflib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import lru_cache
from math import inf
from typing import Any, get_args

# Settings that are no option of a command, since it decides them itself. The ladder of `run` begins with a baseline,
# stays on this machine, varies strategy and devices at the same global batch, and saves nothing.
NO_OPTION = {
    "train": ("nnodes",),
    "run": "strategy nproc_per_node nnodes local_batch sync_batch_norm shard offload label checkpoint_dir "
    "checkpoint_every resume".split(),
}


class ConfigError(ValueError):
    """A configuration that cannot be; `fields` names the settings to change, which a form marks."""

    def __init__(self, fields, message):
        super().__init__(message)
        self.fields = tuple(fields)

    def __reduce__(self):
        return ConfigError, (self.fields, str(self))


@dataclass(frozen=True)
class Setting:
    """The description of one field.

    Attributes:
        name, default: of the field; without a default it may be None.
        type: bool, int, float or str; object if only the reader's own function will do.
        help: what it is, for people.
        noun: what sentences and the form call it.
        table: {allowed value: its summary, or an object with a `summary` and perhaps `aliases`}, for names.
        least, above, below: the smallest number allowed (by default 1 of a count); bounds that are not allowed.
        own: whether an object of the reader's will do in the place of a name.
        or_own: what such an object is, in words.
        flags: further names of its option.
        bare: the value that the option has when it is given without one.
        changes_learning: whether another value trains another model, by more than the rounding of sums.
        changes_timing: whether another value changes the time of a step on the same machine.
        spreads: whether it decides how the work of an update is divided among devices.
        only: whether only some strategies, which name it, can have another value than the default.
        in_checkpoint: whether a run can go on only from a checkpoint with the same value; the name of a property
            of RunConfig that has to agree in its place, if there is one.
    """

    name: str
    type: type
    help: str
    default: Any
    noun: str = ""
    table: dict = field(default_factory=dict)
    least: float | None = None
    above: float | None = None
    below: float = inf
    own: Callable | None = None
    or_own: str = ""
    flags: tuple = ()
    bare: Any = None
    changes_learning: bool = False
    changes_timing: bool = False
    spreads: bool = False
    only: bool = False
    in_checkpoint: bool | str = False

    def __post_init__(self):
        object.__setattr__(self, "noun", self.noun or self.name.replace("_", " "))

    @property
    def choices(self) -> dict:
        """{allowed value: what it means in a few words}, for names."""
        return {name: getattr(row, "summary", row) for name, row in self.table.items()}

    @property
    def aliases(self) -> dict:
        """{another spelling of a choice: that choice}."""
        return {alias: name for name, row in self.table.items() for alias in getattr(row, "aliases", ())}

    @property
    def plain(self) -> bool:
        """Whether its value can be typed."""
        return self.type is not object

    def checked(self, value):
        """The value as it is recorded. Raises ConfigError, which says what is allowed."""
        wrong = "" if value is None and self.default is None else self._problem(value)
        if wrong:
            called = f"{self.name} (--{self.flags[0]})" if self.flags else self.name
            raise ConfigError([self.name], f"{called} is {value!r}; {wrong}")
        return self.aliases.get(value, value) if isinstance(value, str) else value

    def _problem(self, value):
        """What is wrong with a value other than None, or ""."""
        if self.own and not (self.table and isinstance(value, str)):
            return "" if self.own(value) else f"pass {'a name, or ' * bool(self.table)}{self.or_own}"
        if self.table:
            return self._not_among(value)
        if self.type in (int, float):
            return self._bounds(value)
        right = isinstance(value, bool) if self.type is bool else isinstance(value, (str, os.PathLike))
        return "" if right else f"it must be {'True or False' if self.type is bool else 'text'}"

    def _not_among(self, value):
        allowed = [*((None,) if self.default is None else ()), *self.table, *self.aliases]
        if value in allowed:
            return ""
        near = difflib.get_close_matches(str(value), [name for name in allowed if name], n=1)
        hint = f". Did you mean {near[0]!r}?" if near else ""
        return f"allowed: {', '.join(map(repr, allowed))}{f', or {self.or_own}' if self.or_own else ''}{hint}"

    def _bounds(self, value):
        """What a number has to be, if this value is not that; else ""."""
        least = (1 if self.type is int else 0) if self.least is None else self.least
        number = isinstance(value, (int, self.type)) and not isinstance(value, bool)
        if number and (value >= least if self.above is None else value > self.above) and value < self.below:
            return ""
        low = f"{least} or more" if self.above is None else f"above {self.above}"
        high = f"below {self.below}" if self.below < inf else "finite"
        kind = "a whole number" if self.type is int else "a number"
        return f"it must be {kind}, {low}" + ("" if self.type is int else f" and {high}")

    def add_option(self, parser, **more) -> None:
        """Add its option to a parser of the command line; the value is None unless it is given."""
        flags = [f"--{name}" for name in (*self.flags, self.name.replace("_", "-"))]
        shows_default = self.default not in (None, "") and not more.get("required")
        words = f"{self.help} (default: {self.default})" if shows_default else self.help
        more = {"dest": self.name, "help": words.replace("%", "%%"), "default": None, **more}
        if self.type is bool:
            parser.add_argument(*flags, action=argparse.BooleanOptionalAction, **more)
            return
        if self.bare is not None:
            more.update(nargs="?", const=self.bare)
        if self.table:
            more["metavar"] = "{" + ",".join((*self.table, *self.aliases)) + "}"
        parser.add_argument(*flags, type=self.type, **more)


def setting(default, help, **more):
    """A field of a dataclass with its Setting; see there for what can be given. The annotation says its type."""
    return field(default=default, metadata={"help": help, "default": default, **more})


@lru_cache
def settings_of(config_class) -> dict:
    """{name: Setting} of a dataclass, in the order of its fields."""
    return {one.name: Setting(one.name, _type(one), **one.metadata) for one in fields(config_class)}


def _type(one):
    return next((kind for kind in (*get_args(one.type), one.type) if kind in (bool, int, float, str)), object)


def described(settings) -> str:
    """The settings as the lines of a docstring's "Attributes"."""
    lines = ["", "    Attributes:"]
    for one in settings.values():
        names = f": {', '.join(map(repr, one.table))}" if one.table else ""
        own = f"; or {one.or_own}" if one.or_own else ""
        lines.append(f"        {one.name}: {one.help}{names}{own}.")
    return "\n".join(lines)


def add_options(parser, command, settings) -> None:
    """Add the options of `train` or `run` for all settings that the command leaves to the reader."""
    for one in settings.values():
        if one.plain and one.name not in NO_OPTION[command]:
            one.add_option(parser)
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

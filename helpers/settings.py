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
from functools import lru_cache, partial
from typing import Any, get_args

from .launcher.language import local, marked, said

# Settings that are no option of a command, and why: the command itself decides them.
NO_OPTION = {
    "train": {"nnodes": "the launcher says how many hosts take part"},
    "run": {
        "strategy": "varied from rung to rung",
        "nproc_per_node": "varied from rung to rung, up to --devices",
        "nnodes": "the ladder stays on this machine",
        "local_batch": "all rungs have the same global batch",
        "sync_batch_norm": "only ranks can do it, and the ladder begins with a baseline",
        "shard": "only FSDP's ranks can do it, and the ladder begins with a baseline",
        "offload": "only FSDP's ranks can do it, and the ladder begins with a baseline",
        "label": "each rung has its own",
        "checkpoint_dir": "the rungs would save into one folder",
        "checkpoint_every": "nothing is saved without a folder",
        "resume": "nothing is saved",
    },
}


@dataclass(frozen=True)
class Setting:
    """The description of one field.

    Attributes:
        name, default: of the field; without a default it may be None.
        type: bool, int, float or str; object if only the reader's own function will do.
        help: what it is, for people.
        noun: what sentences and the form call it.
        choices: {allowed value: what it means in a few words}, for names.
        aliases: {another spelling of a choice: that choice}.
        least, above: the smallest number allowed (by default 1 of a count), or what all are larger than.
        below: what all numbers are smaller than.
        own: checks an object of the reader's where no name is given; raises TypeError.
        or_own: what may stand there instead of a name, in words.
        flags: further names of its option.
        bare: the value that the option has when it is given without one.
        changes_learning: whether another value trains another model, by more than the rounding of sums.
        changes_timing: whether another value changes the time of a step on the same machine.
        spreads: whether it decides how the work of an update is divided among devices.
        only: the strategies that can have another value than the default (empty: all).
        in_checkpoint: whether a run can go on only from a checkpoint with the same value; the name of a property
            of RunConfig that has to agree in its place, if there is one.
    """

    name: str
    type: type
    help: str
    default: Any
    noun: str = ""
    choices: dict | None = None
    aliases: dict = field(default_factory=dict)
    least: float | None = None
    above: float | None = None
    below: float | None = None
    own: Callable | None = None
    or_own: str = ""
    flags: tuple = ()
    bare: Any = None
    changes_learning: bool = False
    changes_timing: bool = False
    spreads: bool = False
    only: tuple = ()
    in_checkpoint: bool | str = False

    def __post_init__(self):
        for name, value in (("noun", self.name.replace("_", " ")), ("least", 1 if self.type is int else 0)):
            if getattr(self, name) in (None, ""):
                object.__setattr__(self, name, value)

    @property
    def optional(self) -> bool:
        """Whether it may be None."""
        return self.default is None

    @property
    def plain(self) -> bool:
        """Whether its value can be typed."""
        return self.type is not object

    @property
    def called(self) -> str:
        """Its name, with the option of the command line where that one is called otherwise."""
        return f"{self.name} (--{self.flags[0]})" if self.flags else self.name

    def check(self, value) -> None:
        """Raises TypeError or ValueError, which say what is allowed."""
        if value is None and self.optional:
            return
        if self.own and not isinstance(value, str):
            self.own(value)
        elif self.choices:
            self._check_choice(value)
        elif self.type is bool:
            if not isinstance(value, bool):
                raise TypeError(f"{self.name!s} is {value!r}; it must be True or False")
        elif self.type in (int, float):
            self._check_number(value)
        elif self.type is str and not isinstance(value, (str, os.PathLike)):
            raise TypeError(f"{self.name!s} is {value!r}; it must be text")
        elif self.type is object:
            self.own(value)

    def _check_choice(self, value):
        allowed = (*((None,) if self.optional else ()), *self.choices, *self.aliases)
        if value not in allowed:
            listed = ", ".join(map(repr, allowed)) + (f", or {self.or_own}" if self.or_own else "")
            near = difflib.get_close_matches(str(value), [name for name in allowed if name], n=1)
            hint = ". " + marked(f"Did you mean {near[0]!r}?") if near else ""
            raise ValueError(f"{self.called!s} is {value!r}; allowed: {listed}{hint}")

    def _check_number(self, value):
        whole = self.type is int
        allowed = marked(f"{self.least} or more") if self.above is None else marked(f"above {self.above}")
        allowed = allowed if self.below is None else marked(f"{allowed} and below {self.below}")
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            number = marked("a whole number") if whole else marked("a number")
            raise TypeError(f"{self.called!s} is {value!r}; it must be {number}, {allowed}")
        low = value < self.least if self.above is None else value <= self.above
        if low or not value < (float("inf") if self.below is None else self.below):
            allowed = allowed if whole or self.below is not None else marked(f"{allowed} and finite")
            raise ValueError(f"{self.called!s} is {value}; it must be {allowed}")

    def standard(self, value):
        """The spelling of `value` that stands in records."""
        return self.aliases.get(value, value) if self.aliases else value

    def add_option(self, parser, **more) -> None:
        """Add its option to a parser of the command line; the value is None unless it is given."""
        flags = [f"--{name}" for name in (*self.flags, self.name.replace("_", "-"))]
        said = self.default not in (None, "") and not more.get("required")
        words = f"{self.help} (default: {self.default})" if said else self.help
        more = {"dest": self.name, "help": words.replace("%", "%%"), "default": None, **more}
        if self.type is bool:
            parser.add_argument(*flags, action=argparse.BooleanOptionalAction, **more)
            return
        if self.bare is not None:
            more.update(nargs="?", const=self.bare)
        if self.choices:
            more["metavar"] = "{" + ",".join((*self.choices, *self.aliases)) + "}"
        parser.add_argument(*flags, type=self.type, **more)


def setting(default, help, **more):
    """A field of a dataclass with its Setting; see there for what can be given. The annotation says its type."""
    return field(default=default, metadata={"setting": partial(Setting, help=help, default=default, **more)})


@lru_cache
def settings_of(config_class) -> dict:
    """{name: Setting} of a dataclass, in the order of its fields."""
    return {each.name: each.metadata["setting"](each.name, _type(each)) for each in fields(config_class)}


def _type(one):
    plain = [kind for kind in (*get_args(one.type), one.type) if kind in (bool, int, float, str)]
    return (plain or [object])[0]


def described(settings) -> str:
    """The settings as the lines of a docstring's "Attributes"."""
    lines = ["", "    Attributes:"]
    for one in settings.values():
        names = f": {', '.join(map(repr, one.choices))}" if one.choices else ""
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
        print(f"\n{local('stopped')}" + (f": {said(str(stop))}" if str(stop) else ""), file=sys.stderr)
        return 130
    except (ValueError, TypeError, OSError) as error:  # something the caller can put right
        print(f"{prog}: {said(str(error))}", file=sys.stderr)
        return 2
    except RuntimeError as error:  # RankError, LauncherError, CheckpointError: it says what happened
        print(f"{prog}: {said(str(error))}", file=sys.stderr)
        return 1


def chosen(options, settings) -> dict:
    """The settings among parsed options that were given."""
    return {name: value for name, value in vars(options).items() if name in settings and value is not None}


def differing(one, other, settings) -> list:
    """The Settings in which two configurations differ, as records have them: dicts, the older ones with fewer keys."""
    return [s for s in settings.values() if one.get(s.name, s.default) != other.get(s.name, s.default)]

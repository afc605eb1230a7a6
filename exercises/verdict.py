"""What all checks share: the form of a verdict, its words, and how the reader's answer is tried and compared.

The words are in hints.ini, a section a check: `right` says what follows from a right answer, `case` names what was
tried, every other key is what to say to one mistake.
"""

import configparser
import contextlib
import functools
import inspect
import math
from pathlib import Path

import torch

from helpers.language import _


@functools.cache
def texts() -> configparser.RawConfigParser:
    """The English words of all checks."""
    found = configparser.RawConfigParser()
    found.read(Path(__file__).with_name("hints.ini"), encoding="utf-8")
    return found


class Say:
    """The words of one check in the reader's language: `say("case", rank=1)`."""

    def __init__(self, section):
        self.section, self.tried = section, None

    def __call__(self, key, **places) -> str:
        return _(" ".join(texts()[self.section][key].split())).format(**places)

    def case(self, key="case", **places):
        """From here on a hint begins with these words: what was tried."""
        self.tried = self(key, **places)


tried = set()  # the exercises that were checked in this process
SAY = Say("every check")


class NotYet(Exception):
    """Ends a check; its text is the hint."""


def exercise(hints):
    """Decorator that makes a check `name(answer)` of a generator `name(answer, say)` of hints.

    The first hint that is not empty, or a `NotYet`, ends the check; a hint says where to look, not what to write.
    Without any the answer is right. The check returns whether it is right.
    """

    @functools.wraps(hints)
    def check(answer) -> bool:
        say = Say(hints.__name__)
        tried.add(hints.__name__)
        try:
            hint = next(filter(None, hints(answer, say)), None)
        except NotYet as problem:
            hint = str(problem)
        if hint:
            hint = f"{say.tried}: {hint}" if say.tried else hint
            print(SAY("not yet", hint=hint if hint[-1] in ".?。？" else SAY("sentence", text=hint)))
        else:
            print(SAY("right", text=say("right")))
        return not hint

    del check.__wrapped__  # its signature has `say`
    return check


def formula(cases, read, **guesses):
    """Decorator that makes a check of the function that gives the right answer from its arguments, `check.right`.

    Args:
        cases: the arguments of each question.
        read: `read(answer, *case)` asks it: `attempt`, which takes any answer, `number`, `number_or_none`, or on ranks.
        guesses: {hint: what a mistake gives}: a function of the case, whose result the answer is compared with, or one
            whose first parameter is `value`, which says whether the mistake was made. Without a fit: "otherwise".
    """

    def decorate(right):
        @functools.wraps(right)
        def hints(answer, say):
            for case in cases:
                places = dict(zip(inspect.signature(right).parameters, case, strict=True))
                say.case(**places)
                value = read(answer, *(list(it) if isinstance(it, tuple) else it for it in case))
                if not same(value, right(*case)):
                    fits = (key for key, guess in guesses.items() if _fits(guess, value, case))
                    yield say(next(fits, "otherwise"), value=value, **places)

        check = exercise(hints)
        check.right = right
        return check

    return decorate


def _fits(guess, value, case):
    if next(iter(inspect.signature(guess).parameters), None) == "value":
        return bool(guess(value, *case))
    return value is not None and same(value, guess(*case))


def nearest(value, guesses):
    """The first key of {hint: what a mistake gives} that gives the same as `value`."""
    return next((key for key, guess in guesses.items() if same(value, guess)), "otherwise")


def same(value, other) -> bool:
    """Whether two answers are equal, numbers and tensors but for rounding."""
    if isinstance(value, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(value) == len(other) and all(map(same, value, other))
    if isinstance(value, (int, float)) and isinstance(other, (int, float)):
        return math.isclose(value, other, rel_tol=1e-6, abs_tol=1e-12)
    if torch.is_tensor(value) and torch.is_tensor(other):
        return value.shape == other.shape and torch.allclose(value.double(), other.double())
    return value is other or (not torch.is_tensor(value) and value == other)


def attempt(function, *arguments):
    """What the reader's function returns; `NotYet` where it raises."""
    try:
        return function(*arguments)
    except Exception as error:  # the reader's code may raise anything
        raise NotYet(SAY("raised", kind=type(error).__name__, error=first_line(error))) from error


def script_of(answer):
    """The text of a script, given as it is or by the name of its file."""
    text = str(answer)
    if "\n" not in text:
        with contextlib.suppress(OSError, ValueError):
            text = Path(text).read_text(encoding="utf-8")
    if "\n" not in text:
        raise NotYet(SAY("no script", answer=text[:60]))
    return text


def first_line(error) -> str:
    """Of an error's text, at most 200 characters."""
    return (str(error).splitlines() or [""])[0][:200]


def number(function, *arguments, none=False):
    """As `attempt`, of a function that returns a number (with `none`: or None)."""
    value = attempt(function, *arguments)
    if value is None and none:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise NotYet(SAY("no number", value=value)) from None


def flat(tensors):
    """All numbers of some tensors in one."""
    return torch.cat([t.detach().flatten() for t in tensors])

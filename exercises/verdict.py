"""What all checks share: the form of a verdict, its words, and how the reader's answer is tried and compared.

The words are in hints.ini, a section a check: `right` says what follows from a right answer, `case` names what was
tried, every other key is what to say to one mistake.
"""

import configparser
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
        self.section = section

    def __call__(self, key, *args, **places) -> str:
        return _(" ".join(texts()[self.section][key].split())).format(*args, **places)


SAY = Say("every check")


def exercise(hints):
    """Decorator that makes a check `name(answer)` of a generator `name(answer, say)` of hints, or pairs (case, hint).

    The first hint that is not empty ends the check as "Not yet."; it says where to look, not what to write. Without any
    the answer is right. The check returns whether it is right.
    """
    say = Say(hints.__name__)

    @functools.wraps(hints)
    def check(answer) -> bool:
        for found in hints(answer, say):
            case, hint = found if isinstance(found, tuple) else (None, found)
            if hint:
                hint = f"{case}: {hint}" if case else hint
                print(SAY("not yet", hint=hint if hint[-1] in ".?。？" else SAY("sentence", text=hint)))
                return False
        print(SAY("right", text=say("right")))
        return True

    del check.__wrapped__  # its signature has `say`
    return check


def formula(name, doc, cases, right, read=None, **guesses):
    """A check of an answer that follows from its arguments.

    Args:
        doc: what the reader's function is given and is to return.
        cases: the arguments of each question; `right(*case)` is the answer.
        read: `number` or `number_or_none`; None takes any answer.
        guesses: {hint: what a mistake gives}: a function of the case, whose result the answer is compared with, or one
            whose first parameter is `value`, which says whether the mistake was made. Without a fit: "otherwise".
    """
    parameters = list(inspect.signature(right).parameters)

    def hints(answer, say):
        for case in cases:
            places = dict(zip(parameters, case, strict=True))
            value, problem = (read or attempt)(answer, *(list(it) if isinstance(it, tuple) else it for it in case))
            yield say("case", **places), problem
            if not same(value, right(*case)):
                fits = (key for key, guess in guesses.items() if _fits(guess, value, case))
                yield say("case", **places), say(next(fits, "otherwise"), value=value, **places)

    hints.__name__, hints.__doc__ = name, doc
    return exercise(hints)


def _fits(guess, value, case):
    if next(iter(inspect.signature(guess).parameters), None) == "value":
        return bool(guess(value, *case))
    return value is not None and same(value, guess(*case))


def same(value, other) -> bool:
    """Whether two answers are equal, numbers but for rounding."""
    if isinstance(value, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(value) == len(other) and all(map(same, value, other))
    if isinstance(value, (int, float)) and isinstance(other, (int, float)):
        return math.isclose(value, other, rel_tol=1e-6, abs_tol=1e-12)
    return value == other


def attempt(function, *arguments):
    """(value, None) of the reader's function, or (None, what went wrong) when it raises."""
    try:
        return function(*arguments), None
    except Exception as error:  # the reader's code may raise anything
        return None, SAY("raised", kind=type(error).__name__, error=error)


def number(function, *arguments):
    """As `attempt`, of a function that returns a number."""
    value, problem = attempt(function, *arguments)
    if problem:
        return None, problem
    try:
        return float(value), None
    except (TypeError, ValueError, RuntimeError):
        return None, SAY("no number", value=value)


def number_or_none(function, *arguments):
    """As `number`, of a function that may also return None."""
    value, problem = attempt(function, *arguments)
    return (value, problem) if value is None else number(lambda: value)


def equal(some, others) -> bool:
    """Whether two lists of tensors are equal but for rounding in float64."""
    return all(torch.allclose(a.double(), b, rtol=0, atol=1e-10) for a, b in zip(some, others, strict=True))


def flat(tensors):
    """All numbers of some tensors in one."""
    return torch.cat([t.detach().flatten() for t in tensors])
